"""Dramatiq."""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, batch, concurrency, execute, mark

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor(queue_name="bench")
def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        time.sleep(SLEEP_S)


def _work() -> None:
    words = ("benchmarks.peers.dramatiq", "-p", "1", "-t", str(concurrency(8)))
    execute("dramatiq", *words, dramatiq_queue_prefetch=str(batch(200)))


DRIVER = Driver(
    settings="1 process, 8 threads (100 for waiting handlers), dramatiq_queue_prefetch=200",
    send=lambda number: job.send(number, PAD),
    work=_work,
)
