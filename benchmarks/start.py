"""start: from the start of a worker to its first handled message, beside an import of redis; an idle child's RSS."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial

import psutil

from benchmarks.apps import marking
from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.installed import as_installed
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand, cpu_s, wait_until

__all__ = ["start"]

_OURS = "qworker"
#: What no worker starts without. Its time says how fast the machine was.
_FLOOR = "python -c 'import redis'"


def start(plan: Plan) -> list[Figure]:
    """Measure with the server up and the message there; `messages` of the plan count for nothing."""
    with as_installed() as environ:
        _ours(environ)
        contenders = {_OURS: partial(_ours, environ), _FLOOR: partial(_floor, environ)}
        samples = interleave(contenders, plan.rounds, plan.say)
    first, floor = samples.of(_OURS, "first_s"), samples.of(_FLOOR, "first_s")
    memory = samples.of(_OURS, "rss_mb")
    return [
        measured("start", "to the first handled message", first, "s", at_most(0.4)),
        measured("start", _FLOOR, floor, "s"),
        ratio("start", f"to {_FLOOR}", first, floor, None),
        measured("start", "CPU of the command", samples.of(_OURS, "command_s"), "s"),
        measured("start", "CPU of its child", samples.of(_OURS, "child_s"), "s"),
        measured("start", f"CPU of {_FLOOR}", samples.of(_FLOOR, "cpu_s"), "s"),
        measured("start", "RSS of an idle child", memory, "MB", at_most(45)),
    ]


def _ours(environ: Mapping[str, str]) -> dict[str, float]:
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, 1)
        marking.connect_with(stand.factory)
        marking.tasks["mark"].send(0, PAD)
        marking.close()
        environ = {
            "QWORKER_URL": stand.url,
            "QWORKER_NAMESPACE": NAMESPACE,
            "QWORKER_BENCH_MARKS": str(path),
            **environ,
        }
        words = ("run", "benchmarks.apps:marking", "--procs", "1", "--metrics-port", "0")
        begun = time.monotonic()
        with stand.start("qworker", *words, **environ) as worker:
            wait_until(lambda: not marks.missing(), step_s=0.002)
            first_s = marks.times()[0] - begun
            command, child = worker.family()
            spent = {"command_s": cpu_s(command.pid), "child_s": cpu_s(child.pid)}
            time.sleep(0.5)
            return {"first_s": first_s, **spent, "rss_mb": child.memory_info().rss / 1e6}


def _floor(environ: Mapping[str, str]) -> dict[str, float]:
    before, begun = psutil.Process().cpu_times(), time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import redis"], env={**os.environ, **environ}, check=True
    )
    after = psutil.Process().cpu_times()
    spent_s = sum(after[2:4]) - sum(before[2:4])  # of ended children: user and system
    return {"first_s": time.monotonic() - begun, "cpu_s": spent_s}
