"""The handlers that the benchmarks run."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path

from benchmarks.marks import Marks
from qworker import QWorker

app = QWorker("bench")


@app.task(queue="drain")
def noop(number: int, pad: str) -> None:
    """Do nothing with a number and some text: a body of about 100 bytes."""


def grouped(queue: str, groups_of: int) -> QWorker:
    """Make an app that sends the same, spread over so many groups."""
    sending = QWorker("bench")

    @sending.task(name="noop", queue=queue, group=lambda number, pad: f"g{number % groups_of}")
    def noop(number: int, pad: str) -> None: ...

    return sending


aio = QWorker("bench")


@aio.task(name="noop", queue="drain")
async def anoop(number: int, pad: str) -> None:
    """Do nothing, as a coroutine."""


marking = QWorker("bench")


@marking.task(name="mark", queue="mark")
def mark(number: int, pad: str) -> None:
    """Note the time, and wait as long as the environment says."""
    marks, seconds = _marks()
    marks.started(number)
    if seconds:
        time.sleep(seconds)


amarking = QWorker("bench")


@amarking.task(name="mark", queue="mark")
async def amark(number: int, pad: str) -> None:
    """Note the time, and wait as a coroutine as long as the environment says."""
    marks, seconds = _marks()
    marks.started(number)
    if seconds:
        await asyncio.sleep(seconds)


crowd = QWorker("bench")
_MARKED = "QWORKER_BENCH_MARKS" in os.environ


def _crowded(number: int) -> None:
    @crowd.task(name=f"crowd{number:05}", queue=f"q{number:05}")
    def handle(number: int, pad: str) -> None:
        """Note the time if that is asked for, as one task of many."""
        if _MARKED:
            _marks()[0].started(number)


for _number in range(int(os.environ.get("QWORKER_BENCH_TASKS", "0"))):
    _crowded(_number)


@cache
def _marks() -> tuple[Marks, float]:
    return (
        Marks(Path(os.environ["QWORKER_BENCH_MARKS"])),
        float(os.environ.get("QWORKER_BENCH_SLEEP_S", "0")),
    )
