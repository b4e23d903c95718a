"""Presence: the ZSET `ns:reapers` lists the reapers, and when each made its last pass.

Operators and alarms read it: reapers need neither a lock nor a leader.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Final

import structlog

from qworker.client.execute.protocol import Execute
from qworker.engine.note import keep_note
from qworker.engine.raw import raw
from qworker.errors import AccessDeniedError, OutOfMemoryError, ServerError, server_refused
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import leaving_key, reapers_key
from qworker.wire.presence import AHEAD_MS

__all__ = ["FORGOTTEN_MS", "ReaperPresence", "reaper_name"]

_log = structlog.get_logger(__name__)

#: A reaper is removed from the list after this long without a pass.
FORGOTTEN_MS: Final = 60_000
_EVERY_S: Final = 1.0
_PRUNE_EVERY: Final = 10


def reaper_name() -> str:
    """Make a name for this process: host, pid and random digits (containers share host names and pids)."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


class ReaperPresence:
    """Keeps one reaper on the list."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        #: Whether to check if an operator has asked this reaper to leave (`qworker worker drain`), and whether one has.
        self.may_leave = False
        self.leaving = False
        #: Reapers seen lately, this one included.
        self.reapers = 1
        self._execute = execute
        self._key = reapers_key(namespace)
        self._leaving_key = leaving_key(namespace)
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self._next_at = float("-inf")
        self._turn = 0

    def seen(self, now_ms: int) -> None:
        """Write that this reaper made a pass at `now_ms`, by the server's clock. Once a second at most."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + _EVERY_S
        try:
            self._write(now_ms)
        except OutOfMemoryError:
            return  # A full server needs the reaper's work, not its presence.
        except ServerError as error:
            if not server_refused(error):
                raise
            # The key holds another type, which affects nothing else.
            if (suppressed := self._throttle.admit("unwritten")) is not None:
                _log.error(
                    "presence_unwritten", key=self._key, problem=str(error), held_back=suppressed
                )

    def _write(self, now_ms: int) -> None:
        self._execute(keep_note("ZADD", self._key, now_ms, self.name, decode=int))
        if self._turn % _PRUNE_EVERY == 0:
            before_ms = now_ms - FORGOTTEN_MS
            # A time that far ahead was written before the clock was set back.
            for span in (("-inf", f"({before_ms}"), (f"({now_ms + AHEAD_MS}", "+inf")):
                self._execute(raw("ZREMRANGEBYSCORE", self._key, *span, decode=int))
            self.reapers = max(1, self._execute(raw("ZCARD", self._key, decode=int)))
        self._turn += 1
        if self.may_leave:
            self._check_leaving()

    def _check_leaving(self) -> None:
        words = ("HEXISTS", self._leaving_key, self.name)
        try:
            self.leaving = self._execute(raw(*words, decode=bool))
        except AccessDeniedError:
            self.may_leave = False  # The ACL of an older version lacks this key.

    def leave(self) -> None:
        """Remove this reaper from the list, and the request to leave."""
        if self.leaving:
            self._execute(raw("HDEL", self._leaving_key, self.name, decode=int))
        self._execute(raw("ZREM", self._key, self.name, decode=int))
