"""The watch that tests take times with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.timing import DEADLINE_S, Watch

BURN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system keeps no account")
def test_it_stops_while_a_process_waits_for_its_core() -> None:
    """Of two processes on one core each has half of it, and a watch for one shows about that half."""
    core = str(min(os.sched_getaffinity(0)))
    rivals = [subprocess.Popen([sys.executable, "-c", BURN, core]) for _ in range(2)]
    try:
        time.sleep(0.5)
        watch, begun = Watch(rivals[0].pid), time.monotonic()
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
from tests.timing import Watch

watch = Watch()
print("ready", flush=True)
sys.stdin.readline()
print(watch.passed_s())
"""


@pytest.mark.slow
def test_it_stops_while_nothing_runs() -> None:
    """A machine that stands for seconds, as a process that is stopped does, takes no time by the watch."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate("\n", timeout=DEADLINE_S)
    assert float(said) < time.monotonic() - begun - 0.7


def test_it_continues_while_a_process_sleeps() -> None:
    """Idle time counts as time."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    watch = Watch(process.pid)
    assert watch.end_s(process) > 0.1
    assert process.wait() == 0
