"""The live parts of pages, as last written: viewers of the same page share them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from qworker.monitor.sample import Sample
    from qworker.monitor.sampler import Sampler

__all__ = ["LivePart", "LiveParts"]

#: The pause before a page with its own readings is written again, as a multiple of what that takes the server and this
#: process, and of the number of such pages: together they use less than a percent of the server's time. And the longest
#: pause, in seconds.
_REST: Final = 150
_LONGEST_S: Final = 60.0


class LivePart(NamedTuple):
    """The live part of a page: its text, the queues read often for it, and whether it has readings of its own."""

    text: str
    watched: tuple[str, ...]
    reads: bool


class _Kept:
    """What was written of a page, when, and until when it is shown."""

    __slots__ = ("at_s", "live", "lock", "until_s")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.live: LivePart | None = None
        self.at_s = 0.0
        self.until_s = 0.0


class LiveParts:
    """The live parts of pages, each written once per sample; those with readings of their own less often.

    `spent_s`: the seconds that the calling thread has kept servers and this process busy so far.
    """

    def __init__(
        self,
        sampler: Sampler,
        spent_s: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = sampler
        self._spent_s = spent_s
        self._clock = clock
        self._lock = threading.Lock()
        self._number = -1
        self._kept: dict[Any, _Kept] = {}

    def get(
        self, key: Any, write: Callable[[Sample], LivePart], since_s: float = float("-inf")
    ) -> tuple[int, LivePart]:
        """Return the number of the last sample and what was written of it; writes it if nothing was.

        A viewer who comes late, for an earlier sample, gets the last one too. What was written before `since_s`, by
        the clock, is written again: a page must not fall back behind what it showed when it was opened.
        """
        with self._lock:
            sample, now_s = self._sampler.sample, self._clock()
            if sample.number != self._number:
                self._number = sample.number
                self._kept = {
                    each: kept for each, kept in self._kept.items() if now_s < kept.until_s
                }
            kept = self._kept.setdefault(key, _Kept())
            resting = sum(1 for other in self._kept.values() if other.until_s or other is kept)
        # A page that waits for a server holds up no other.
        with kept.lock:
            if kept.live is None or (kept.live.reads and kept.at_s < since_s):
                kept.at_s, spent_s = self._clock(), self._spent_s()
                kept.live = write(sample)
                if kept.live.reads:
                    took_s = self._spent_s() - spent_s
                    kept.until_s = self._clock() + min(_LONGEST_S, _REST * took_s * resting)
            return sample.number, kept.live
