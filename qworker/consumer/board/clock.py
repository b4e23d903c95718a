"""The clock of boards: seconds that also count while the machine is suspended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["MAX_BOOT_S", "boot_time", "since_of"]

#: No time of the clock is larger; one that is was written by a handler.
MAX_BOOT_S: Final = 1e9

#: 0 means not paused, so a pause since the first instant of the clock is this.
_EARLIEST: Final = 1e-9

if hasattr(time, "CLOCK_BOOTTIME"):

    def boot_time() -> float:
        """Seconds of a clock that never jumps and counts suspended time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock counts suspended time where the system offers it
    boot_time = time.monotonic


def since_of(tasks: Sequence[str], paused_s: Mapping[str, float]) -> list[float]:
    """Turn for how long tasks have been paused into since when, by `boot_time()`, in the order of `tasks`; 0.0: not."""
    now = boot_time()
    return [max(now - paused_s[name], _EARLIEST) if name in paused_s else 0.0 for name in tasks]
