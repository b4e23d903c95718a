"""Chains, groups, runs and gathers in which every tenth effect ends its process by SIGKILL, once."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.marks import Marks
from qworker import QWorker, SyncRun, chain, group

__all__ = ["EFFECTS", "FLOWS", "MARKS", "app", "start"]

#: Effects of a flow: steps of its chain or run, calls of its group. Each dies once in every flow.
EFFECTS: Final = 10
#: Marks of a flow: when its process died, when the effect began again, and when the flow ended.
MARKS: Final = 3

app = QWorker("bench")


def _effect(number: int, at: int) -> None:
    """Have an effect: die at it, if it is the one of ten and for the first time."""
    if at != number % EFFECTS:
        return
    marks, died = _marks(), MARKS * number
    if not marks.times(died)[0]:
        marks.started(died)
        os.kill(os.getpid(), signal.SIGKILL)
    if not marks.times(died)[1]:
        marks.started(died + 1)


@app.task(queue="flow", result="1h")
def chained(number: int, at: int) -> int:
    """Be the first step of a chain, or a call of a group."""
    _effect(number, at)
    return number


@app.task(queue="flow", result="1h")
def follow(number: int, at: int) -> int:
    """Be a later step of a chain."""
    _effect(number, at)
    return number


@app.task(queue="flow")
def last(number: int) -> None:
    """Note that a chain has ended."""
    _marks().started(MARKS * number + 2)


@app.task(queue="flow")
def joined(numbers: list[int]) -> None:
    """Note that a group has ended."""
    _marks().started(MARKS * numbers[0] + 2)


@app.workflow(queue="flow")
def run(run: SyncRun, number: int) -> None:
    """Take ten steps."""
    for at in range(EFFECTS):
        run.step("effect", _effect, number, at)
    _marks().started(MARKS * number + 2)


@app.workflow(queue="flow")
def gathering(run: SyncRun, number: int) -> None:
    """Gather ten calls."""
    run.gather(chained.call(number, at) for at in range(EFFECTS))
    _marks().started(MARKS * number + 2)


def start(kind: str, number: int) -> None:
    """Start a flow of a kind."""
    if kind == "chain":
        first, *others = range(EFFECTS)
        chain(chained.call(number, first), *(follow.then(at) for at in others), last.then()).send()
    elif kind == "group":
        calls = (chained.call(number, at) for at in range(EFFECTS))
        group(calls, policy="successes").then(joined).send()
    elif kind == "run":
        run.send(number)
    else:
        gathering.send(number)


#: Kinds of flows.
FLOWS: Final = ("chain", "group", "run", "gather")


@cache
def _marks() -> Marks:
    return Marks(Path(os.environ["QWORKER_BENCH_MARKS"]))
