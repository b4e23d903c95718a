"""The watch that tests take times with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import timing
from tests.timing import DEADLINE_S, Clock, Watch

BURN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system keeps no account")
def test_it_stops_while_a_process_waits_for_its_core() -> None:
    """Of two processes on one core each has half of it, and a watch for one shows about that half."""
    rivals = burning(2)
    try:
        time.sleep(0.5)
        begun, watch = time.monotonic(), Watch(rivals[0].pid)
        time.sleep(1.0)
        passed_s, whole_s = watch.passed_s(), time.monotonic() - begun
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()

    assert passed_s < 0.9 * whole_s


STOPPED = """
import os
import sys
import time
from tests.timing import Watch

begun, watch = time.monotonic(), Watch()
print("ready", flush=True)
sys.stdin.readline()
print(watch.passed_s(), time.monotonic() - begun)
"""


@pytest.mark.slow
def test_it_stops_while_nothing_runs() -> None:
    """A machine that stands for seconds, as a process that is stopped does, takes no time by the watch."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate("\n", timeout=DEADLINE_S)
    passed_s, whole_s = map(float, said.split())
    assert passed_s < whole_s - 0.7


def test_it_continues_while_a_process_sleeps() -> None:
    """Idle time counts as time."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    watch = Watch(process.pid)
    assert watch.end_s(process) > 0.1
    assert process.wait() == 0


def burning(number: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that all want the same core."""
    core = str(min(os.sched_getaffinity(0)))
    return [subprocess.Popen([sys.executable, "-c", BURN, core]) for _ in range(number)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system keeps no account")
def test_it_never_shows_less_than_a_tenth() -> None:
    """Six that wait at once have not waited six times."""
    rivals = burning(6)
    try:
        time.sleep(0.5)
        begun, watch = time.monotonic(), Watch(*(rival.pid for rival in rivals))
        readings = [watch.passed_s()]
        while time.monotonic() < begun + 1.0:
            time.sleep(0.1)
            readings.append(watch.passed_s())
        whole_s = time.monotonic() - begun
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()

    assert all(reading >= 0 for reading in readings)
    assert 0.05 < readings[-1] < 0.9 * whole_s


@pytest.mark.parametrize(
    ("waits", "passed_s"),
    [
        ([(1.0, {"a": 0.0}), (2.0, {"a": 0.0})], 2.0),
        ([(1.0, {"a": 0.4}), (2.0, {"a": 0.4})], 1.6),
        # One after the other within a beat, and more of them than fit into it.
        ([(1.0, {"a": 0.4, "b": 0.3}), (2.0, {"a": 0.4, "b": 0.3})], 1.3),
        ([(1.0, {"a": 0.8, "b": 0.9}), (2.0, {"a": 0.8, "b": 0.9})], 1.0),
        # However many waited at once: what all of them sleep after that counts.
        ([(1.0, dict.fromkeys("abcdef", 0.9)), (2.0, dict.fromkeys("abcdef", 0.9))], 1.0),
        # One that has lasted for longer than a beat, beside another that was told before.
        ([(1.0, {"a": 0.5}), (2.0, {"a": 0.5}), (3.0, {"a": 0.5, "b": 2.2})], 0.5),
        # Nothing is spared from before the watch, and a tenth counts in any case.
        ([(1.0, {"a": 5.0})], 0.1),
        # A thread that has ended, and a new one.
        ([(1.0, {"a": 0.5}), (2.0, {}), (3.0, {"b": 0.25})], 2.25),
    ],
)
def test_waits_are_left_out_once(
    monkeypatch: pytest.MonkeyPatch, waits: list[tuple[float, dict[str, float]]], passed_s: float
) -> None:
    """Each wait is the time right before it was told."""
    account: dict[str, float] = {}
    clock = Clock(0.0)
    monkeypatch.setattr(timing, "_late_s", lambda *_: 0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    monkeypatch.setattr(Watch, "_read", lambda _: (dict(account), 0.0))
    watch = Watch()
    for now_s, told in waits:
        with watch._beat:
            clock.now_s, account = now_s, told
            watch._note()
    assert watch.passed_s() == pytest.approx(passed_s)
