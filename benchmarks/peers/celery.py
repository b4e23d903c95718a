"""Celery."""

from __future__ import annotations

import time

import celery
from celery import chain, chord

from benchmarks.peers.driver import (
    GROUP_CALLS,
    PAD,
    SLEEP_S,
    URL,
    Driver,
    concurrency,
    execute,
    mark,
)

app = celery.Celery("bench", broker=URL, backend=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=128,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="job")
def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        time.sleep(SLEEP_S)


@app.task(name="step")
def step(number: int) -> int:
    """Be a step of a chain."""
    return number


@app.task(name="first")
def first(number: int, pad: str) -> int:
    """Begin a chain."""
    return number


@app.task(name="last")
def last(number: int) -> None:
    """Note that a chain has ended."""
    mark(number)


@app.task(name="kept", ignore_result=False)
def kept(number: int, pad: str) -> int:
    """Note the time, and return what is kept."""
    mark(number)
    return number


def _start_chain(number: int) -> None:
    chain(first.s(number, PAD), step.s(), step.s(), step.s(), last.s()).delay()


@app.task(name="member", ignore_result=False)
def member(number: int, pad: str) -> int:
    """Be a call of a group, whose callback gets its value."""
    return number


@app.task(name="gathered")
def gathered(numbers: list[int]) -> None:
    """Note that all calls of a group have ended."""
    mark(numbers[0])


def _start_group(number: int) -> None:
    chord(member.s(number, PAD) for _ in range(GROUP_CALLS))(gathered.s())


def _work() -> None:
    pool = ["-P", "threads", "-c", str(concurrency(1))] if concurrency(0) else ["-P", "solo"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error"]
    execute("celery", "-A", "benchmarks.peers.celery", "worker", *pool, *quiet)


DRIVER = Driver(
    settings="acks_late, ignore_result, prefetch 128, -P solo (threads for waiting handlers), no gossip, "
    "mingle, heartbeat, events",
    send=lambda number: job.delay(number, PAD),
    work=_work,
    flows={
        "chain": _start_chain,
        "group": _start_group,
        "result": lambda number: kept.delay(number, PAD),
    },
)
