"""Fixtures of the script tests: a new queue on the shared servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

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
