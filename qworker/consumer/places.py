"""A worker's places for children: what is known of those who held one, and when the next may take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["Place"]

#: A child that ends sooner than this did not work; the next one is started later and later.
SHORT_LIFE_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class Place:
    """One place. It decides and starts nothing; times are those of one monotonic clock, in seconds."""

    #: When the next child is to start; None while somebody holds the place, or for ever.
    restart_at: float | None = None
    #: The last child died with nothing started.
    died_idle: bool = False
    #: Children in a row that the watchdog ended.
    stalls: int = 0
    #: Children in a row that ended before they had imported the app.
    failed_starts: int = 0
    _pause_s: float = field(default=0.0, init=False)

    def is_due(self, now: float) -> bool:
        """Whether the next child is to start."""
        return self.restart_at is not None and now >= self.restart_at

    def restart(self, now: float) -> None:
        """Let the next child start at once: the last one has worked, or will not fail for the same reason."""
        self._pause_s = 0.0
        self.restart_at = now

    def restart_later(self, now: float) -> float:
        """Let the next child start after a pause, which grows with every one that did not work; returns its seconds."""
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self.restart_at = now + self._pause_s
        return self._pause_s

    def stalled(self, handled: int) -> bool:
        """Note that a child was deaf after so many messages; returns whether a new one does not help either."""
        self.stalls = 1 if handled else self.stalls + 1
        return self.stalls > 1
