"""Fixtures of the daemon's tests: queues of one namespace, and clocks that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qworker.wire.keys import queues_key
from tests.lua.drive import Drive
from tests.timing import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock for the test to move."""
    return Clock()


@pytest.fixture
def open_queue(store_url: str, namespace: str) -> Iterator[Callable[..., Drive]]:
    """Make queues of the test's namespace, registered by default."""
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
