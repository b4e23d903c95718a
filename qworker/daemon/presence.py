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

import structlog

from qworker.client.commands.command import Command
from qworker.daemon.registry import Execute
from qworker.errors import AccessDeniedError, OutOfMemoryError, ServerError
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import leaving_key, reapers_key

__all__ = ["FORGOTTEN_MS", "Presence", "reaper_name"]

_log = structlog.get_logger(__name__)

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
        #: Whether to look if an operator asks this reaper to leave, and whether one does (`qworker worker drain`).
        self.may_leave = False
        self.leaving = False
        #: Reapers seen lately, this one included.
        self.reapers = 1
        self._execute = execute
        self._key = reapers_key(namespace)
        self._leaving_key = leaving_key(namespace)
        self._clock = clock
        self._seldom = Seldom(clock=clock)
        self._next_at = float("-inf")
        self._turn = 0

    def seen(self, now_ms: int) -> None:
        """Say that this reaper came by at `now_ms`, by the server's clock."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + _EVERY_S
        try:
            self._write(now_ms)
        except OutOfMemoryError:
            return  # A full server is drained by what the reaper does, not by what it says.
        except ServerError as error:
            if type(error) is not ServerError:
                raise
            # The list holds another type, which stops nothing else.
            if (held := self._seldom.more("unwritten")) is not None:
                _log.error("presence_unwritten", key=self._key, problem=str(error), held_back=held)

    def _write(self, now_ms: int) -> None:
        self._execute(Command(None, (), ("ZADD", self._key, now_ms, self.name), int))
        if self._turn % _PRUNE_EVERY == 0:
            before_ms = now_ms - FORGOTTEN_MS
            words = ("ZREMRANGEBYSCORE", self._key, "-inf", f"({before_ms}")
            self._execute(Command(None, (), words, int))
            self.reapers = max(1, self._execute(Command(None, (), ("ZCARD", self._key), int)))
        self._turn += 1
        if self.may_leave:
            self._look_whether_to_leave()

    def _look_whether_to_leave(self) -> None:
        words = ("HEXISTS", self._leaving_key, self.name)
        try:
            self.leaving = self._execute(Command(None, (), words, bool))
        except AccessDeniedError:
            self.may_leave = False  # Its user may not look there: no daemon fails for that.

    def leave(self) -> None:
        """Take this reaper off the list, and what was asked of it."""
        if self.leaving:
            self._execute(Command(None, (), ("HDEL", self._leaving_key, self.name), int))
        self._execute(Command(None, (), ("ZREM", self._key, self.name), int))
