"""The loop around the reaper's passes: it waits between them, and logs and repeats those that fail."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from qworker.daemon.reaper import Reaper
from qworker.daemon.tick import Tick
from qworker.errors import QworkerError
from qworker.telemetry.throttle import LogThrottle

__all__ = ["ReaperLoop", "pause_after"]

_log = structlog.get_logger(__name__)

#: The least pause between two passes, so that messages due at every millisecond are moved together.
SHORTEST_PAUSE_S: Final = 0.02
#: The pause is also at least this many times as long as the sweep of all queues took, up to a tick: a loop that waits
#: for due times uses a fifth of a core at most, however many queues there are. Work that is left over does not wait.
REST: Final = 4.0
#: The wait after a failed pass doubles from the first of these to the last.
FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 2.0
_NEXT_STEP: Final = (
    f"it tries again every {LONGEST_BACKOFF_S:g} s until it succeeds; see `qworker doctor`"
)
#: Reapers that wake for the same due time are spread over this much each, 100 ms in all.
SPREAD_S: Final = 0.005
LONGEST_SPREAD_S: Final = 0.1


def pause_after(tick: Tick, tick_s: float, jitter: float) -> float:
    """Return the seconds to wait after a pass; `jitter` is a random number from 0 to 1.

    No pause while there is work. Otherwise a tick, shortened by up to 15 % so that reapers that started together drift
    apart, or until the next thing is due if that is sooner. Of several reapers that wait for the same due time each
    adds a few milliseconds: the first does the work, and the others find none.
    """
    if tick.more:
        return 0.0
    pause_s = tick_s * (1 - 0.15 * jitter)
    if tick.next_wake_ms is not None:
        spread_s = min(LONGEST_SPREAD_S, SPREAD_S * (tick.reapers - 1)) * jitter
        due_s = (tick.next_wake_ms - tick.now_ms) / 1000 - tick.elapsed_s + spread_s
        pause_s = min(pause_s, due_s)
    return max(pause_s, min(tick_s, max(SHORTEST_PAUSE_S, REST * tick.sweep_s)))


class ReaperLoop:
    """Runs passes until it is stopped. A pass that fails is logged, counted and tried again."""

    def __init__(
        self,
        reaper: Reaper,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[Tick | None], None] | None = None,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a loop that does not run yet.

        `before` is called before the first pass; while it raises, the pass has failed. `after` gets each pass, None for
        a failed one, and must not raise. `sleep` waits for some seconds, and `stop` must cut it short; None: an event.
        """
        self._reaper = reaper
        self._before = before
        self._after = after
        self._stopping = threading.Event()
        self._sleep = self._stopping.wait if sleep is None else sleep
        self._clock = clock
        self._throttle = LogThrottle(every_s=10.0, clock=clock)
        self._failing_since: float | None = None
        self._failed = 0
        #: When the last pass ended, failed or not, by the loop's clock; None before the first.
        self.passed_at: float | None = None

    def run(self) -> None:
        """Run passes until `stop`. Raises only what ends a process."""
        while not self._stopping.is_set():
            tick = self._pass()
            if tick is None and self._stopping.is_set():
                break  # stopped by `before`, or during the failed pass
            self.passed_at = self._clock()
            if self._after is not None:
                self._after(tick)
            if self._stopping.is_set():
                break
            jitter = random.random()  # noqa: S311 - spreading, not secrecy
            if tick is None:
                self._sleep(self._backoff_s() * (0.5 + jitter / 2))
            elif (pause_s := pause_after(tick, self._reaper.tick_ms / 1000, jitter)) > 0:
                self._sleep(pause_s)

    def stop(self) -> None:
        """End the wait, or the pass after its running script. From any thread."""
        self._reaper.stop()
        self._stopping.set()

    def age_s(self) -> float | None:
        """Seconds since the last pass ended; None before the first one."""
        return None if self.passed_at is None else self._clock() - self.passed_at

    def _pass(self) -> Tick | None:
        try:
            if self._before is not None:
                self._before()
                self._before = None
                if self._stopping.is_set():
                    return None
            tick = self._reaper.tick()
        except Exception as error:  # noqa: BLE001 - without the loop no message would move
            self._failed_pass(error)
            return None
        if self._failing_since is not None:
            _log.info(
                "tick_recovered",
                failed=self._failed,
                after_s=round(self._clock() - self._failing_since, 3),
            )
            self._failing_since, self._failed = None, 0
        if not tick.idle:
            _log.debug("tick_done", **tick.log_fields())
        return tick

    def _failed_pass(self, error: Exception) -> None:
        self._failed += 1
        if self._failing_since is None:
            self._failing_since = self._clock()
        if (suppressed := self._throttle.admit(type(error).__name__)) is not None:
            # The text of our own errors is enough; any other one is a defect and needs its traceback.
            is_ours = isinstance(error, QworkerError)
            _log.error(
                "tick_failed",
                error=type(error).__name__,
                problem=str(error),
                failed=self._failed,
                held_back=suppressed,
                **({"next_step": _NEXT_STEP} if is_ours else {"exc_info": True}),
            )

    def _backoff_s(self) -> float:
        return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._failed - 1, 10))
