"""When a child takes a suspect, beside which nothing else may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qworker.client.commands.receiving import Suspects

if TYPE_CHECKING:
    from qworker.consumer.pace import QueuePace

__all__ = ["SuspectTurns"]

#: Every so many receives a child that may take suspects takes one first.
_TURN: Final = 4
#: A child stands still so long at most to become free for suspects, in so long a time.
_DRAIN_S: Final = 5.0
_DRAIN_EVERY_S: Final = 30.0


class SuspectTurns:
    """Gives suspects their turns. `first`: this child may take suspects before others."""

    def __init__(self, *, first: bool, clock: Callable[[], float]) -> None:
        self._first = first
        self._clock = clock
        #: When seconds of standing still are counted anew, how many there were, and since when there are more.
        self._anew = 0.0
        self._stood_still_s = 0.0
        self._still_since: float | None = None

    def stands_still(self, queue: QueuePace, *, idle: bool) -> bool:
        """Whether to take nothing now because a suspect waits, and it is time for one: what is in hand ends first.

        Where handlers run for minutes that would be a long standstill, so no more than 5 s of 30 s are spent on it.
        """
        if not (queue.suspects and self._is_turn(queue)) or idle:
            self._still_since = None
            return False
        now = self._clock()
        if now >= self._anew:
            self._anew, self._stood_still_s = now + _DRAIN_EVERY_S, 0.0
        if self._still_since is not None:
            self._stood_still_s += now - self._still_since
        self._still_since = now if self._stood_still_s < _DRAIN_S else None
        return self._still_since is not None

    def of(self, queue: QueuePace, *, idle: bool) -> Suspects:
        """Whether the next receive takes a suspect: only where nothing else runs. It goes on standing still no more."""
        self._still_since = None
        if not idle:
            return Suspects.NEVER
        return Suspects.FIRST if self._is_turn(queue) else Suspects.IF_NOTHING_ELSE

    def of_wait(self) -> Suspects:
        """Whether the receive behind a wait takes a suspect."""
        return Suspects.FIRST if self._first else Suspects.IF_NOTHING_ELSE

    def _is_turn(self, queue: QueuePace) -> bool:
        return self._first and queue.receives % _TURN == _TURN - 1
