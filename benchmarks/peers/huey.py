"""Huey."""

from __future__ import annotations

import time

from huey import RedisHuey

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, concurrency, execute, mark

huey = RedisHuey("bench", url=URL, results=False, blocking=True)


@huey.task()
def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        time.sleep(SLEEP_S)


def _work() -> None:
    workers = ("-w", str(concurrency(4)), "-k", "thread", "-n", "-q")
    execute("huey.bin.huey_consumer", "benchmarks.peers.huey.huey", *workers)


DRIVER = Driver(
    settings="4 threads (100 for waiting handlers), results=False, blocking, no periodic tasks",
    send=lambda number: job(number, PAD),
    work=_work,
)
