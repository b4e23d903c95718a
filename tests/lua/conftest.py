"""Fixtures of the script tests: a new queue on the shared servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from tests.lua.drive import Connections, Drive


@pytest.fixture(scope="session")
def connections() -> Iterator[Callable[[str], Connections]]:
    """Connections to the server of a URL, the same in all tests of this process."""
    opened: list[Connections] = []

    @cache
    def connect(url: str) -> Connections:
        opened.append(Connections(url))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def drive(
    store_url: str, namespace: str, queue_name: str, connections: Callable[[str], Connections]
) -> Drive:
    """A queue on Valkey."""
    return Drive(store_url, namespace, queue_name, shared=connections(store_url))


@pytest.fixture
def engine_drive(
    engine_url: str, namespace: str, queue_name: str, connections: Callable[[str], Connections]
) -> Drive:
    """A queue on each engine in turn, for what might differ between them."""
    return Drive(engine_url, namespace, queue_name, shared=connections(engine_url))


@pytest.fixture
def new_drive(store_url: str, connections: Callable[[str], Connections]) -> Callable[[], Drive]:
    """Opens a queue of its own on Valkey at each call, for a table whose rows need one each."""
    return partial(_new_drive, store_url, connections(store_url))


@pytest.fixture
def new_engine_drive(
    engine_url: str, connections: Callable[[str], Connections]
) -> Callable[[], Drive]:
    """As `new_drive`, on each engine in turn."""
    return partial(_new_drive, engine_url, connections(engine_url))


def _new_drive(url: str, shared: Connections) -> Drive:
    return Drive(url, f"t{uuid.uuid4().hex[:12]}", f"q{uuid.uuid4().hex[:12]}", shared=shared)
