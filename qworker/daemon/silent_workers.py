"""Forgets workers that were killed: they could not withdraw their documents, nor requests to leave.

A pod that crashes in a loop leaves a document at each start. So one is removed `FORGOTTEN_MS` after its worker was last
seen, and sooner where more than `MAX_SILENT` are silent: those that have been silent for longest. A worker that is
removed while it is only frozen writes its document again within two seconds of its return.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from qworker.client.execute.protocol import Execute
from qworker.engine.raw import raw
from qworker.errors import AccessDeniedError, ServerError, server_refused
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import leaving_key, workers_key
from qworker.wire.numbers import whole
from qworker.wire.presence import WorkerDocument, age_of, is_gone

__all__ = ["FORGOTTEN_MS", "MAX_SILENT", "SilentWorkers"]

_log = structlog.get_logger(__name__)

#: Documents and requests are removed after this time.
FORGOTTEN_MS: Final = 3_600_000
#: Documents of silent workers that are kept at most.
MAX_SILENT: Final = 100
#: All reapers together make one walk in this time, on average.
_EVERY_S: Final = 60.0
#: Documents of one HSCAN, and HSCANs of one pass.
_SCANNED: Final = 50
_SCANS: Final = 10
_AT_ONCE: Final = 500
_NAMED: Final = 5


class SilentWorkers:
    """Walks through the documents of all workers now and then; `reapers` share the walks."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._workers_key = workers_key(namespace)
        self._leaving_key = leaving_key(namespace)
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self._cursor = "0"
        #: Silent workers of the present walk, and for how long, in ms.
        self._silent: dict[bytes, int] = {}
        # At a random time: a thousand workers that start together do not all walk.
        self._walk_at = clock() + _EVERY_S * random.random()  # noqa: S311 - spreading, not secrecy

    def forget(self, now_ms: int, reapers: int) -> int:
        """Continue the walk if it is due; returns the number of workers that were forgotten. Raises `ServerError`.

        A key of another type, or an ACL of an older version, is logged and affects nothing else.
        """
        now = self._clock()
        if now < self._walk_at:
            return 0
        if self._cursor == "0" and random.random() * reapers >= 1:  # noqa: S311 - spreading, not secrecy
            self._walk_at = now + _EVERY_S  # it is another reaper's turn
            return 0
        try:
            forgotten = self._walk(now_ms)
        except ServerError as error:
            self._begin_again()
            if not server_refused(error) and not isinstance(error, AccessDeniedError):
                raise
            if (suppressed := self._throttle.admit("kept")) is not None:
                _log.warning("silent_workers_kept", problem=str(error), held_back=suppressed)
            return 0
        if forgotten:
            names = [name.decode("utf-8", "replace") for name in forgotten[:_NAMED]]
            _log.info("workers_forgotten", number=len(forgotten), workers=names)
        return len(forgotten)

    def _walk(self, now_ms: int) -> list[bytes]:
        """Read some pages, and remove what is too old; after the last page, what is too much. Returns the names."""
        forgotten: list[bytes] = []
        for _ in range(_SCANS):
            page = ("HSCAN", self._workers_key, self._cursor, "COUNT", _SCANNED)
            cursor, flat = self._execute(raw(*page, decode=list))
            seen = {
                name: WorkerDocument.parse(stored)
                for name, stored in zip(flat[::2], flat[1::2], strict=True)
            }
            ages = {name: document.age_ms(now_ms) for name, document in seen.items()}
            old = [name for name, age_ms in ages.items() if age_ms > FORGOTTEN_MS]
            forgotten += self._remove(self._workers_key, old)
            self._silent |= {
                name: age_ms for name, age_ms in ages.items() if is_gone(age_ms) and name not in old
            }
            self._cursor = cursor.decode()
            if self._cursor == "0":
                longest = sorted(self._silent, key=lambda name: -self._silent[name])
                forgotten += self._remove(
                    self._workers_key, longest[: max(0, len(longest) - MAX_SILENT)]
                )
                self._forget_requests(now_ms)
                self._begin_again()
                break
        return forgotten

    def _forget_requests(self, now_ms: int) -> None:
        """Forget requests to leave that their workers would have seen long ago."""
        flat: list[bytes] = self._execute(raw("HGETALL", self._leaving_key, decode=list))
        requests = zip(flat[::2], flat[1::2], strict=True)
        old = [name for name, at in requests if age_of(whole(at) or 0, now_ms) > FORGOTTEN_MS]
        self._remove(self._leaving_key, old)

    def _remove(self, key: str, fields: Sequence[bytes]) -> Sequence[bytes]:
        for first in range(0, len(fields), _AT_ONCE):
            self._execute(raw("HDEL", key, *fields[first : first + _AT_ONCE], decode=int))
        return fields

    def _begin_again(self) -> None:
        self._cursor, self._silent = "0", {}
        self._walk_at = self._clock() + _EVERY_S
