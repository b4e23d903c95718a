"""Celery."""

from __future__ import annotations

import time

import celery

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, concurrency, execute, mark

app = celery.Celery("bench", broker=URL)
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


def _work() -> None:
    pool = ["-P", "threads", "-c", str(concurrency(1))] if concurrency(0) else ["-P", "solo"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error"]
    execute("celery", "-A", "benchmarks.peers.celery", "worker", *pool, *quiet)


DRIVER = Driver(
    settings="acks_late, ignore_result, prefetch 128, -P solo (threads for waiting handlers), no gossip, "
    "mingle, heartbeat, events",
    send=lambda number: job.delay(number, PAD),
    work=_work,
)
