"""Find queues that no client has announced: walk through the key space, a slice per call.

The first walk runs at the start. The next begins ten seconds later if the server holds up to 16,000 keys, later the
more keys there are, up to ten minutes later from a million on; and ten seconds later while an alert lasts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.protocol import Execute
from qworker.client.namespace.queues import is_shard_name
from qworker.engine.raw import raw
from qworker.errors import AccessDeniedError, OutOfMemoryError
from qworker.store.nodes import Address

__all__ = ["LEAST_REST_S", "Discovery"]

_log = structlog.get_logger(__name__)

#: The fewest and the most seconds between two walks. In between, it is the rest per SCAN of the last walk, times the
#: number of reapers, which share the walks.
LEAST_REST_S: Final = 10.0
_MAX_REST_S: Final = 600.0
_REST_PER_SCAN_S: Final = 0.6
#: Seconds of frequent walks after the index has shrunk: clients announce their queues again within a minute, but may be
#: gone before.
_ALERT_S: Final = 70.0
#: Keys that one SCAN visits, about 0.2 ms of the server.
_SCANNED: Final = 1000
#: SCANs of one call after the first walk.
_SCANS: Final = 20


class Discovery:
    """Walks through the keys of all masters again and again, and yields the names of the queues that they belong to."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        masters: Callable[[], Sequence[Address]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._masters = masters
        self._clock = clock
        #: Servers that the walk still has to scan, and the cursor in the first of them.
        self._ahead: list[Address] = []
        self._cursor = "0"
        self._scans = 0
        self._walk_at = float("-inf")
        self._walked = False
        self._alert_until = float("-inf")
        # meta, ready, unacked or delayed; the pattern leaves leases, which are many, on the server.
        self._pattern = f"{namespace}:{{*}}:[mrud][en]*"
        self._part = re.compile(
            re.escape(namespace) + r":\{([^{}]+)\}:(?:meta|ready|unacked|delayed)"
        )

    def walk(self, now: float, budget_s: float, reapers: int) -> Iterator[set[str]]:
        """Continue the walk if it is due; yields names, with or without new ones, after each SCAN.

        The first walk takes up to `budget_s` seconds a call, a later one at most 20 SCANs. `reapers` share the walks.
        Raises the `ServerError` of a single server that does not answer.
        """
        if now < self._walk_at:
            return
        deadline, scans, away = now + budget_s, 0, False
        self._ahead = self._ahead or list(self._masters())
        try:
            while scans == 0 or (self._clock() < deadline and (not self._walked or scans < _SCANS)):
                words = ("SCAN", self._cursor, "MATCH", self._pattern, "COUNT", _SCANNED)
                try:
                    command = raw(*words, decode=_page, node=self._ahead[0])
                    self._cursor, keys = self._execute(command)
                except AWAY:
                    # A cursor holds only on the server that gave it, and another one may have taken over.
                    if len(self._masters()) == 1:
                        self._begin_again(LEAST_REST_S)
                        raise
                    self._cursor, keys, away = "0", [], True
                yield self._queues_of(keys)
                scans += 1
                self._scans += 1
                if self._cursor == "0":
                    del self._ahead[0]
                if not self._ahead:
                    self._walked = True
                    self._begin_again(self._rest_s(reapers, soon=away))
                    break
        except (AccessDeniedError, OutOfMemoryError) as error:
            # Only queues that no client announced are missed.
            _log.warning("discovery_refused", problem=str(error))
            self._begin_again(_MAX_REST_S)

    def alert(self, now: float) -> None:
        """Walk often for a while, from now on."""
        self._alert_until = now + _ALERT_S
        self._begin_again(0.0)

    def alert_soon(self, now: float) -> None:
        """Walk often for a while; a walk under way continues, and the next one begins within ten seconds."""
        self._alert_until = now + _ALERT_S
        self._walk_at = min(self._walk_at, now + LEAST_REST_S)

    def _rest_s(self, reapers: int, *, soon: bool) -> float:
        """Seconds until the next walk: walks use less than a two thousandth of a server's time."""
        if soon or self._clock() < self._alert_until:
            return LEAST_REST_S
        return min(_MAX_REST_S, max(LEAST_REST_S, _REST_PER_SCAN_S * self._scans * reapers))

    def _begin_again(self, after_s: float) -> None:
        self._ahead, self._cursor, self._scans = [], "0", 0
        self._walk_at = self._clock() + after_s

    def _queues_of(self, keys: list[str]) -> set[str]:
        queues = {match[1] for key in keys if (match := self._part.fullmatch(key))}
        return {name for name in queues if is_shard_name(name)}


def _page(reply: Any) -> tuple[str, list[str]]:
    cursor, keys = reply
    return cursor.decode(), [key.decode("utf-8", "replace") for key in keys]
