"""Log lines that would repeat: one per key and minute."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LogThrottle"]


class LogThrottle:
    """Limits a repeated log event to one per key and minute."""

    def __init__(
        self, every_s: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, key: str) -> int | None:
        """Count an event; returns how many were suppressed since the last one, or None to suppress this one."""
        now = self._clock()
        admitted_at, suppressed = self._last.get(key, (float("-inf"), 0))
        if now - admitted_at < self._every_s:
            self._last[key] = (admitted_at, suppressed + 1)
            return None
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[key] = (now, 0)
        return suppressed
