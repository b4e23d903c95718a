"""When a child takes a suspect, which runs alone."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from qworker.engine.receive import Suspects

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState

__all__ = ["SuspectTurns"]

#: A child that may take suspects takes one first on every fourth receive.
_TURN: Final = 4
#: A child pauses for at most 5 of 30 seconds to become free for suspects.
_DRAIN_S: Final = 5.0
_DRAIN_EVERY_S: Final = 30.0


class SuspectTurns:
    """Gives suspects their turns. `first`: this child may take suspects before other messages."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        #: When the next 30 seconds begin, how long it has paused in these, and since when it pauses now.
        self._next_at = 0.0
        self._stood_still_s = 0.0
        self._still_since: float | None = None

    def stands_still(self, queue: QueueState, *, idle: bool) -> bool:
        """Whether to take nothing now, because it is a suspect's turn and running handlers have to end first.

        Handlers that run for minutes would make that a long standstill, so it is limited to 5 s in 30 s.
        """
        if not (queue.suspects and self._is_turn(queue)) or idle:
            self._still_since = None
            return False
        now = monotonic()
        if now >= self._next_at:
            self._next_at, self._stood_still_s = now + _DRAIN_EVERY_S, 0.0
        if self._still_since is not None:
            self._stood_still_s += now - self._still_since
        self._still_since = now if self._stood_still_s < _DRAIN_S else None
        return self._still_since is not None

    def of(self, queue: QueueState, *, idle: bool) -> Suspects:
        """Whether the next receive takes a suspect, which only an idle child may; ends a standstill."""
        self._still_since = None
        if not idle:
            return Suspects.NEVER
        return Suspects.FIRST if self._is_turn(queue) else Suspects.IF_NOTHING_ELSE

    def of_wait(self) -> Suspects:
        """Whether the receive that follows a wait takes a suspect."""
        return Suspects.FIRST if self._first else Suspects.IF_NOTHING_ELSE

    def _is_turn(self, queue: QueueState) -> bool:
        return self._first and queue.receives % _TURN == _TURN - 1
