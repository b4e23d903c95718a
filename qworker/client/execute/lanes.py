"""The lanes of a sync client: each call takes one for its time, so that calls of many threads stand side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from qworker.client.execute.base import Lane as BaseLane
from qworker.store.connection_set import ConnectionSet

__all__ = ["Lane", "Lanes"]

Lane: TypeAlias = BaseLane[ConnectionSet]

#: Maximum number of free lanes; further ones are closed after their call.
_POOLED: Final = 64


class Lanes:
    """Free lanes, made when there are none. `forked` is called once in a child, which inherits no lanes."""

    def __init__(self, make: Callable[[], Lane], forked: Callable[[], None]) -> None:
        self._make = make
        self._forked = forked
        self._free: list[Lane] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def take(self) -> Lane:
        """Take a free lane, the last one used first."""
        if os.getpid() != self._pid:
            self._drop_inherited()
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def put_back(self, lane: Lane) -> None:
        """Give a lane back after its call."""
        if len(self._free) < _POOLED:
            self._free.append(lane)
        else:
            lane.connections.close()

    def close(self) -> None:
        """Close the connections of free lanes."""
        while self._free:
            self._free.pop().connections.close()

    def _drop_inherited(self) -> None:
        with self._lock:
            if os.getpid() != self._pid:
                # The sockets are the parent's too: drop them without sending anything.
                self._free = []
                self._forked()
                self._pid = os.getpid()
