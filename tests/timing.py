"""Time in tests: a deadline for all, a clock that stands, and a watch that stops while the machine does.

    watch = Watch(server.pid, worker.process.pid)
    …
    assert watch.passed_s() < 1.0

A promised time is kept or not by what processes do. On a machine with more to do than cores they also stand in line,
for as long as others like; the system's scheduler keeps an account of that, thread by thread. And a virtual machine may
not run at all for a second: then a thread that wants to wake up every few milliseconds wakes up late.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["DEADLINE_S", "Clock", "Watch", "keep_within", "left_of_ms", "looks"]

#: Nothing that a test waits for takes longer than this, on any machine.
DEADLINE_S = 60.0
_BEAT_S = 0.02


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Read it, in seconds."""
        return self.now_s


class Watch:
    """Seconds since it was made, without those in which a thread of `pids` could have run and had no core.

    Nor does it count those for which its own thread overslept. At least that: where several waited at once, each
    counts. Where the system keeps no account only the oversleeping is left out.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._overslept_s = 0.0
        self._beaten = time.monotonic()
        # Ends with the watch, which it does not keep alive.
        self._pulse = threading.Thread(target=_beat, args=(weakref.ref(self),), daemon=True)
        self._pulse.start()
        self._waited = self._read()
        self._begun = time.monotonic()

    def passed_s(self) -> float:
        """Read the watch."""
        now_s, waited = time.monotonic(), self._read()
        return (
            now_s
            - self._begun
            - self._overslept_s
            - _late_s(self._beaten, now_s)
            - sum(
                max(0.0, waited_s - self._waited.get(thread, 0.0))
                for thread, waited_s in waited.items()
            )
        )

    def end_s(self, process: subprocess.Popen[bytes]) -> float:
        """Wait until a process has ended, and read the watch while the system still has its account."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return self.passed_s()

    def _read(self) -> dict[str, float]:
        """Seconds for which each thread has waited for a core since it began."""
        waited: dict[str, float] = {}
        for pid in self._pids:
            for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    waited[account.parent.name] = int(account.read_text().split()[1]) / 1e9
                except (OSError, IndexError):
                    continue  # the thread has ended
        waited.pop(str(self._pulse.native_id), None)  # it counts itself
        return waited


def looks(within_s: float = DEADLINE_S, every_s: float = 0.005) -> Iterator[float]:
    """Yield before each of many looks at something the seconds passed, with a pause in between; ends when time is up.

    The longer it lasts the longer are the pauses, up to ten times `every_s`: a look is work, for the server as well.
    """
    begun, passed_s = time.monotonic(), 0.0
    while passed_s <= within_s:
        passed_s = time.monotonic() - begun
        yield passed_s  # the last one after the time is up: what came during a standstill is seen
        time.sleep(min(max(every_s, passed_s / 50), 10 * every_s))


def keep_within(promised_s: float, measure: Callable[[], float], rounds: int = 4) -> None:
    """Assert that one of some measurements is as short as promised, where a defect would make each of them longer."""
    taken: list[float] = []
    while not taken or taken[-1] >= promised_s:
        assert len(taken) < rounds, f"promised {promised_s:g} s, took {taken}"
        taken.append(measure())


def left_of_ms(whole_ms: int, since_s: float, *, coarse_ms: int = 0) -> range:
    """Return the milliseconds that may be left of a time that has been running since `time.monotonic()` was `since_s`.

    `coarse_ms`: how much shorter than `whole_ms` it may have been when it began.
    """
    passed_ms = int((time.monotonic() - since_s) * 1000) + 2  # two clocks round
    return range(whole_ms - coarse_ms - passed_ms, whole_ms + 1)


def _beat(watch: weakref.ref[Watch]) -> None:
    """Wake up again and again, and add to a watch what a wake-up is late."""
    while True:
        time.sleep(_BEAT_S)
        if (read := watch()) is None:
            return
        now_s = time.monotonic()
        read._overslept_s += _late_s(read._beaten, now_s)
        read._beaten = now_s
        del read


def _late_s(beaten: float, now_s: float) -> float:
    """How much later than a beat `now_s` is, if that is more than systems are imprecise."""
    late_s = now_s - beaten - _BEAT_S
    return late_s if late_s > _BEAT_S else 0.0
