"""Keep journals from filling a server that needs its memory for messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.configuring import shed
from qworker.client.commands.reaping import MAX_SWEPT
from qworker.daemon.registry import AWAY, Execute
from qworker.errors import AccessDeniedError
from qworker.store.nodes import Address
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import QueueKeys

__all__ = ["SHED_ABOVE", "WRITE_BELOW", "Shedding"]

_log = structlog.get_logger(__name__)

#: Parts of maxmemory: above the one journals are not written, below the other they are again.
SHED_ABOVE: Final = 0.85
WRITE_BELOW: Final = 0.75
#: Seconds after which all queues are told again while nothing changes: new ones, and what another daemon left behind.
_AGAIN_S: Final = 10.0
#: Queues that are told again in a second at most, so that 100,000 take 50 s.
_TOLD_PER_S: Final = 2_000


class Shedding:
    """Looks at the server's memory at each pass, and tells queues whether to write their journals."""

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
        self._seldom = Seldom(clock=clock)
        self._on = False
        self._tell_at = float("-inf")

    def look(self, queues: Sequence[QueueKeys]) -> None:
        """Make one pass: one call, and one per 500 queues where the state has changed or it is time to tell all again.

        Of several servers the fullest counts for all: their queues are of one kind mostly, and fill up alike.
        """
        try:
            part = self._fullest()
        except AccessDeniedError as error:
            if self._seldom.more("memory") is not None:
                _log.warning("memory_unread", problem=str(error))
            return
        on = part > SHED_ABOVE or (self._on and part >= WRITE_BELOW)
        now = self._clock()
        if on == self._on and now < self._tell_at:
            return
        changed = 0
        for first in range(0, len(queues), MAX_SWEPT):
            changed += self._execute(shed(queues[first : first + MAX_SWEPT], on=on))
        if changed:
            event = "journals_shed" if on else "journals_resumed"
            _log.warning(event, queues=changed, memory_used=round(part, 3))
        self._on = on
        self._tell_at = now + max(_AGAIN_S, len(queues) / _TOLD_PER_S)

    def _fullest(self) -> float:
        """The largest part of maxmemory that is used of any server; of those that answer, where there are several."""
        masters, parts = self._masters(), list[float]()
        for node in masters:
            try:
                command = Command(None, (), ("INFO", "memory"), _part_used, node=node)
                parts.append(self._execute(command))
            except AWAY:
                if len(masters) == 1:
                    raise
        return max(parts, default=0.0)


def _part_used(reply: Any) -> float:
    """The part of maxmemory that is used; 0 without a limit."""
    if isinstance(reply, bytes):
        lines = reply.decode("utf-8", "replace").splitlines()
        reply = dict(line.split(":", 1) for line in lines if ":" in line)
    most = int(reply.get("maxmemory", 0))
    return int(reply.get("used_memory", 0)) / most if most else 0.0
