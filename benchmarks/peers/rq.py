"""RQ."""

from __future__ import annotations

import time
from collections.abc import Sequence

import redis
from rq import Queue, SimpleWorker

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, mark


def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        time.sleep(SLEEP_S)


def _work() -> None:
    SimpleWorker([_QUEUE], connection=_QUEUE.connection).work(logging_level="ERROR")


def _bulk(numbers: Sequence[int]) -> None:
    prepared = [
        Queue.prepare_data("benchmarks.peers.rq.job", (number, PAD), result_ttl=0)
        for number in numbers
    ]
    _QUEUE.enqueue_many(prepared)


_QUEUE = Queue("bench", connection=redis.Redis.from_url(URL))


DRIVER = Driver(
    settings="SimpleWorker (no fork per job; no concurrency), result_ttl=0, logs of errors only",
    send=lambda number: _QUEUE.enqueue("benchmarks.peers.rq.job", number, PAD, result_ttl=0),
    work=_work,
    bulk=_bulk,
)
