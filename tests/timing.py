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

from tests.consumer.forkserver import WarmProcess

__all__ = ["DEADLINE_S", "Clock", "Watch", "keep_within", "left_of_ms", "looks"]

#: Nothing that a test waits for takes longer than this, on any machine.
DEADLINE_S = 60.0
_BEAT_S = 0.02
#: The part of all time that counts at least.
_LEAST = 0.1


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Read it, in seconds."""
        return self.now_s


class Watch:
    """Seconds since it was made, without those in which a thread of `pids` could have run and had no core.

    Nor does it count those for which its own thread overslept. Where several waited at once, that time is left out
    once, so that time in which all of them sleep counts, however many waited before. At
    least a tenth of all time counts: on any machine, and whoever waits, a bound fails that is passed by ten times.
    Where the system keeps no account only the oversleeping is left out.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._beats = 0
        self._beat = threading.Condition()
        #: Time that does not count: disjoint, in order, each with its begin and end.
        self._spared: list[tuple[float, float]] = []
        # Ends with the watch, which it does not keep alive.
        self._pulse = threading.Thread(target=_beat, args=(weakref.ref(self),), daemon=True)
        with self._beat:  # the first beat is after this
            self._pulse.start()
            self._waited, self._pulse_waited_s = self._read()
            self._begun = self._beaten = time.monotonic()

    def passed_s(self) -> float:
        """Read the watch. Takes a beat: until then it is not known whether the machine stood."""
        now_s = time.monotonic()
        with self._beat:
            beats = self._beats
            assert self._beat.wait_for(lambda: self._beats > beats, DEADLINE_S)
            spared_s = sum(max(0.0, min(end, now_s) - begin) for begin, end in self._spared)
        whole_s = now_s - self._begun
        return max(whole_s - spared_s, _LEAST * whole_s)

    def end_s(self, process: subprocess.Popen[bytes] | WarmProcess) -> float:
        """Wait until a process has ended, and read the watch.

        The system keeps the account of a child of ours until it is collected; the last beat of another one is lost.
        """
        if isinstance(process, subprocess.Popen):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait(DEADLINE_S)
        return self.passed_s()

    def _note(self) -> None:
        """Spare what the threads have waited since the last beat, and what this one is late."""
        (waited, pulse_waited_s), now_s = self._read(), time.monotonic()
        waits_s = [
            waited_s - self._waited.get(thread, 0.0)
            for thread, waited_s in waited.items()
            if waited_s > self._waited.get(thread, 0.0)
        ]
        # A pulse that had no core is late, but the threads may have had one.
        own_s = pulse_waited_s - self._pulse_waited_s
        waits_s.append(max(0.0, _late_s(self._beaten, now_s) - own_s))
        # The system tells a wait when it is over. Waits one after the other add up, but not to more than the time since
        # the last beat; one that has begun before that was longer by itself.
        beat_s = now_s - self._beaten
        self._spare(now_s - min(sum(waits_s), max(beat_s, *waits_s)), now_s)
        self._waited, self._pulse_waited_s, self._beaten = waited, pulse_waited_s, now_s
        self._beats += 1
        self._beat.notify_all()

    def _spare(self, begin: float, end: float) -> None:
        """Leave out a time that ends after all others, which it may overlap."""
        begin = max(begin, self._begun)
        while self._spared and self._spared[-1][1] >= begin:
            begin = min(begin, self._spared.pop()[0])
        if begin < end:
            self._spared.append((begin, end))

    def _read(self) -> tuple[dict[str, float], float]:
        """Seconds for which each thread has waited for a core since it began, and the pulse."""
        waited: dict[str, float] = {}
        pulse = str(self._pulse.native_id)
        tasks = [Path(f"/proc/self/task/{pulse}/schedstat")]
        for pid in self._pids:
            tasks += Path(f"/proc/{pid}/task").glob("*/schedstat")
        for account in tasks:
            try:
                waited[account.parent.name] = int(account.read_text().split()[1]) / 1e9
            except (OSError, IndexError):
                continue  # the thread has ended
        return waited, waited.pop(pulse, 0.0)


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
    """Wake up again and again, and let a watch note what has passed."""
    while True:
        time.sleep(_BEAT_S)
        if (read := watch()) is None:
            return
        with read._beat:
            read._note()
        del read


def _late_s(beaten: float, now_s: float) -> float:
    """How much later than a beat `now_s` is, if that is more than systems are imprecise."""
    late_s = now_s - beaten - _BEAT_S
    return late_s if late_s > _BEAT_S else 0.0
