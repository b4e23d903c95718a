"""Fixtures of the daemon's tests: queues of one namespace, and clocks that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qworker.client.sync import Client
from qworker.store.connection import ConnectionFactory
from qworker.wire.keys import queues_key
from tests.lua.drive import Drive


class Clock:
    """A clock that stands still; calling it tells its time in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock for the test to move."""
    return Clock()


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    """A client of the shared Valkey."""
    with Client(ConnectionFactory(store_url), give_up_s=5) as client:
        yield client


@pytest.fixture
def open_queue(store_url: str, namespace: str) -> Iterator[Callable[..., Drive]]:
    """Make queues of the test's namespace, registered unless told otherwise."""
    drives: list[Drive] = []

    def make(name: str, *, registered: bool = True) -> Drive:
        drive = Drive(store_url, namespace, name)
        drives.append(drive)
        if registered:
            drive.redis.hset(queues_key(namespace), name, 1)
        return drive

    yield make
    for drive in drives:
        drive.close()


def events(logs: list[dict[str, object]], event: str) -> list[dict[str, object]]:
    """The lines of one event."""
    return [line for line in logs if line["event"] == event]
