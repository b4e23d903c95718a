"""The chains, groups of calls, runs and results that `runs` measures."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.marks import Marks
from qworker import QWorker, SyncRun

__all__ = [
    "CHAIN_STEPS",
    "GROUP_CALLS",
    "RUN_STEPS",
    "app",
    "first",
    "gathered",
    "kept",
    "last",
    "run",
    "sleeper",
    "step",
]

CHAIN_STEPS: Final = 5
#: Calls of a group, besides its callback.
GROUP_CALLS: Final = 10
RUN_STEPS: Final = 10

app = QWorker("bench")


@app.task(queue="flow", result="1h")
def first(number: int, pad: str) -> int:
    """Begin a chain."""
    return number


@app.task(queue="flow", result="1h")
def step(number: int) -> int:
    """Be a step of a chain."""
    return number


@app.task(queue="flow")
def last(number: int) -> None:
    """Note that a chain has ended."""
    _marks().started(number)


@app.task(queue="flow")
def gathered(numbers: list[int]) -> None:
    """Note that all calls of a group have ended."""
    _marks().started(numbers[0])


@app.task(queue="flow", result="1h")
def kept(number: int, pad: str) -> int:
    """Note the time, and return what is kept."""
    _marks().started(number)
    return number


def _same(number: int) -> int:
    return number


@app.workflow(queue="flow")
def run(run: SyncRun, number: int, pad: str) -> None:
    """Take ten steps."""
    for _ in range(RUN_STEPS):
        number = run.step("same", _same, number)
    _marks().started(number)


@app.workflow(queue="flow")
def sleeper(run: SyncRun, number: int) -> None:
    """Record two steps, and sleep for a month."""
    run.step("same", _same, number)
    run.step("same", _same, number)
    _marks().started(number)
    run.sleep("30d")


@cache
def _marks() -> Marks:
    return Marks(Path(os.environ["QWORKER_BENCH_MARKS"]))
