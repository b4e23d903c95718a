"""The state of a queue, or of one shard of it, as a client knows it from its last receives there."""

from __future__ import annotations

import random
from typing import Final

from qworker.client.execute.backoff import Backoff
from qworker.engine.receive import Batch
from qworker.errors import QworkerError, is_answer

__all__ = ["ShardState"]

#: While suspects wait, one receive in four takes one first, and at least one in half a second does.
_SUSPECT_TURN: Final = 4
_SUSPECT_EVERY_S: Final = 0.5


class ShardState:
    """Whether suspects wait in a shard, and whether it failed lately.

    Suspects are delivered alone, so each costs a receive: a client that always takes them first serves nothing else,
    and one that never does lets them starve behind newer messages. A shard that failed is left alone for 0.5 s to 5 s
    while there are others to receive from. Used by threads without a lock: a race costs one call too many or too few.
    """

    __slots__ = ("_backoff", "_error", "_others", "_suspect_at", "_suspects")

    def __init__(self) -> None:
        #: None before the first receive.
        self._suspects: int | None = None
        self._others = 0
        self._suspect_at = float("-inf")
        self._error: QworkerError | None = None
        self._backoff = Backoff()

    def suspect_due(self, now: float) -> bool:
        """Say whether suspects wait and it is their turn."""
        return bool(self._suspects) and (
            self._others >= _SUSPECT_TURN - 1 or now - self._suspect_at >= _SUSPECT_EVERY_S
        )

    def suspect_first(self, now: float) -> bool:
        """Say whether a receive takes a suspect first. The first one cannot know, so one client in four does."""
        if self._suspects is None:
            return random.randrange(_SUSPECT_TURN) == 0  # noqa: S311 - turns, not secrecy
        return self.suspect_due(now)

    def received(self, batch: Batch, now: float) -> None:
        """Learn from a receive."""
        self._suspects = batch.suspects
        self._error = None
        self._backoff.succeeded()
        if batch.alone:
            self._others, self._suspect_at = 0, now
        else:
            self._others += 1

    def failed(self, error: QworkerError, now: float) -> float:
        """Learn from a failure; returns the seconds for which the shard is left alone."""
        self._error = error
        return self._backoff.failed(now, answered=is_answer(error))

    def resting(self, now: float) -> QworkerError | None:
        """Return the error for which the shard is left alone now; None if it is not."""
        return self._error if self._backoff.left_s(now) else None

    def rest_ms(self, now: float) -> int:
        """Return the ms until the shard is received from again, 1 or more."""
        return max(1, round(self._backoff.left_s(now) * 1000))
