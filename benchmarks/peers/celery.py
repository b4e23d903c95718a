"""Celery."""

from __future__ import annotations

import time

import celery
from celery import chain

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, concurrency, execute, mark

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


def _work() -> None:
    pool = ["-P", "threads", "-c", str(concurrency(1))] if concurrency(0) else ["-P", "solo"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error"]
    execute("celery", "-A", "benchmarks.peers.celery", "worker", *pool, *quiet)


DRIVER = Driver(
    settings="acks_late, ignore_result, prefetch 128, -P solo (threads for waiting handlers), no gossip, "
    "mingle, heartbeat, events",
    send=lambda number: job.delay(number, PAD),
    work=_work,
    flows={"chain": _start_chain, "result": lambda number: kept.delay(number, PAD)},
)
