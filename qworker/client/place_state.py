"""What a client knows of a queue, or of one shard of it, from its last receives there."""

from __future__ import annotations

import random
from typing import Final

from qworker.client.commands.receiving import Batch
from qworker.errors import QworkerError, is_answer

__all__ = ["PlaceState"]

#: While suspects wait, one receive in so many takes one first, and one in so many seconds does.
_SUSPECT_TURN: Final = 4
_SUSPECT_EVERY_S: Final = 0.5
#: How long a place that failed is left alone, as long as there are others to receive from.
_FIRST_REST_S: Final = 0.5
_LONGEST_REST_S: Final = 5.0


class PlaceState:
    """Whether suspects wait at a place, and whether it failed lately.

    Suspects are delivered alone, so they cost a receive each: whoever always takes them first serves nothing else, and
    whoever never does leaves them to starve behind what is newer. Used by threads without a lock: what a race costs is
    one call too many or too few.
    """

    __slots__ = ("_error", "_others", "_rest_s", "_suspect_at", "_suspects", "_until")

    def __init__(self) -> None:
        #: None before the first receive.
        self._suspects: int | None = None
        self._others = 0
        self._suspect_at = float("-inf")
        self._error: QworkerError | None = None
        self._until = self._rest_s = 0.0

    def suspect_due(self, now: float) -> bool:
        """Whether suspects are known to wait, and it is the turn of one."""
        return bool(self._suspects) and (
            self._others >= _SUSPECT_TURN - 1 or now - self._suspect_at >= _SUSPECT_EVERY_S
        )

    def suspect_first(self, now: float) -> bool:
        """Whether a receive takes a suspect first. The very first one cannot know, so one client in four does."""
        if self._suspects is None:
            return random.randrange(_SUSPECT_TURN) == 0  # noqa: S311 - turns, not secrecy
        return self.suspect_due(now)

    def received(self, batch: Batch, now: float) -> None:
        """Learn from a receive."""
        self._suspects = batch.suspects
        self._error, self._rest_s = None, 0.0
        if batch.alone:
            self._others, self._suspect_at = 0, now
        else:
            self._others += 1

    def failed(self, error: QworkerError, now: float) -> float:
        """Learn from a failure; returns the seconds for which the place is left alone.

        Twice as many each time, unless its server answers that it cannot serve yet.
        """
        longer_s = 0.0 if is_answer(error) else 2 * self._rest_s
        self._rest_s = min(max(longer_s, _FIRST_REST_S), _LONGEST_REST_S)
        self._error, self._until = error, now + self._rest_s
        return self._rest_s

    def resting(self, now: float) -> QworkerError | None:
        """The error for which the place is left alone now, if it is."""
        return self._error if now < self._until else None

    def rest_ms(self, now: float) -> int:
        """In how many ms (1 or more) it is to be asked again."""
        return max(1, round((self._until - now) * 1000))
