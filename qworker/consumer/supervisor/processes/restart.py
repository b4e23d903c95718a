"""When the next child of a slot starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["ChildSlot"]

#: A child that ends sooner than this has not worked: the next one waits longer each time.
SHORT_LIFE_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class ChildSlot:
    """A slot for one child at a time. It only decides; times are seconds of one monotonic clock."""

    #: When to start the next child; None while a child has the slot, or if none follows.
    restart_at: float | None = None
    #: The last child died without a running handler.
    died_idle: bool = False
    #: Children in a row that the watchdog ended.
    stalls: int = 0
    #: Children in a row that ended before they had imported the app.
    failed_starts: int = 0
    _pause_s: float = field(default=0.0, init=False)

    def is_due(self, now: float) -> bool:
        """Whether to start the next child now."""
        return self.restart_at is not None and now >= self.restart_at

    def restart(self, now: float) -> None:
        """Let the next child start at once: the last one has worked, or the next will not fail for the same reason."""
        self._pause_s = 0.0
        self.restart_at = now

    def restart_later(self, now: float) -> float:
        """Let the next child start after a pause that grows with each child that did not work; returns its seconds."""
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self.restart_at = now + self._pause_s
        return self._pause_s

    def stalled(self, handled: int) -> bool:
        """Note a stall after this many handled messages; returns whether a new child does not help either."""
        self.stalls = 1 if handled else self.stalls + 1
        return self.stalls > 1

    def child_ended(self, reason: str, *, running: int) -> None:
        """Note why a child has ended (see `totals.REASONS`) and how many handlers it ran."""
        self.died_idle = not running and reason in ("crashed", "watchdog")
        if reason != "watchdog":
            self.stalls = 0
