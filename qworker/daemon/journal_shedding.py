"""Stops journals while a server is nearly full and needs its memory for messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.protocol import Execute
from qworker.daemon.memory import MemoryUse
from qworker.engine.raw import server_info
from qworker.engine.reap import MAX_SWEPT, shed
from qworker.errors import AccessDeniedError
from qworker.store.nodes import Address
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys

__all__ = ["SHED_ABOVE", "WRITE_BELOW", "JournalShedding"]

_log = structlog.get_logger(__name__)

#: Parts of maxmemory: above the first, journals are not written; below the second, they are again.
SHED_ABOVE: Final = 0.85
WRITE_BELOW: Final = 0.75
#: Seconds after which all queues are set again although nothing has changed, for new ones and those that another
#: daemon left shed.
_AGAIN_S: Final = 10.0
#: Queues per second that are set again at most, so that 100,000 take 50 s.
_SET_PER_S: Final = 2_000


class JournalShedding:
    """Reads the server's memory at each pass, and sets whether queues write their journals."""

    def __init__(
        self,
        execute: Execute,
        masters: Callable[[], Sequence[Address]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._masters = masters
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self._on = False
        self._set_at = float("-inf")
        #: The memory of the fullest server at the last pass; None if it was not read.
        self.fullest: MemoryUse | None = None

    def check(self, queues: Sequence[QueueKeys]) -> None:
        """Make one pass: one call, and one per 500 queues when the state has changed or it is time to set all again.

        Of several servers the fullest counts for all: mostly their queues are alike, and fill up alike.
        """
        self.fullest = None
        try:
            self.fullest = self._read()
        except AccessDeniedError as error:
            if self._throttle.admit("memory") is not None:
                _log.warning("memory_unread", problem=str(error))
            return
        part = (self.fullest.ratio if self.fullest else None) or 0.0
        on = part > SHED_ABOVE or (self._on and part >= WRITE_BELOW)
        now = self._clock()
        if on == self._on and now < self._set_at:
            return
        changed = 0
        for first in range(0, len(queues), MAX_SWEPT):
            changed += self._execute(shed(queues[first : first + MAX_SWEPT], on=on))
        if changed:
            event = "journals_shed" if on else "journals_resumed"
            _log.warning(event, queues=changed, memory_used=round(part, 3))
        self._on = on
        self._set_at = now + max(_AGAIN_S, len(queues) / _SET_PER_S)

    def _read(self) -> MemoryUse | None:
        """Read the memory of the fullest server; servers of a Cluster that are away do not count."""
        masters, found = self._masters(), list[MemoryUse]()
        for node in masters:
            try:
                info = self._execute(server_info("memory", node=node))
            except AWAY:
                if len(masters) == 1:
                    raise
            else:
                found.append(MemoryUse.of(node, info))
        return max(found, key=lambda use: use.ratio or 0.0, default=None)
