"""Presence: the ZSET `ns:reapers` says which reapers there are and when each came by last.

Nothing depends on it but people and alarms: reapers need no lock and no leader.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Final

from qworker.client.commands.command import Command
from qworker.daemon.registry import Execute
from qworker.errors import OutOfMemoryError
from qworker.wire.keys import reapers_key

__all__ = ["FORGOTTEN_MS", "Presence", "reaper_name"]

#: A reaper that has not come by for so long is taken off the list.
FORGOTTEN_MS: Final = 60_000
_EVERY_S: Final = 1.0
_PRUNE_EVERY: Final = 10


def reaper_name() -> str:
    """Make a name for this process: host, pid and a few random digits (containers share host names and pids)."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


class Presence:
    """Writes one reaper into the list, once a second at most."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        #: Reapers seen lately, this one included.
        self.reapers = 1
        self._execute = execute
        self._key = reapers_key(namespace)
        self._clock = clock
        self._next_at = float("-inf")
        self._turn = 0

    def seen(self, now_ms: int) -> None:
        """Say that this reaper came by at `now_ms`, by the server's clock."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + _EVERY_S
        try:
            self._execute(Command(None, (), ("ZADD", self._key, now_ms, self.name), int))
        except OutOfMemoryError:
            return  # A full server is drained by what the reaper does, not by what it says.
        if self._turn % _PRUNE_EVERY == 0:
            before_ms = now_ms - FORGOTTEN_MS
            words = ("ZREMRANGEBYSCORE", self._key, "-inf", f"({before_ms}")
            self._execute(Command(None, (), words, int))
            self.reapers = max(1, self._execute(Command(None, (), ("ZCARD", self._key), int)))
        self._turn += 1

    def leave(self) -> None:
        """Take this reaper off the list."""
        self._execute(Command(None, (), ("ZREM", self._key, self.name), int))
