"""Dramatiq."""

from __future__ import annotations

import time

import dramatiq
from dramatiq import group, pipeline
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as RateLimits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.driver import (
    GROUP_CALLS,
    PAD,
    SLEEP_S,
    URL,
    Driver,
    batch,
    concurrency,
    execute,
    mark,
)

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
broker.add_middleware(GroupCallbacks(RateLimits(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        time.sleep(SLEEP_S)


@dramatiq.actor(queue_name="bench")
def step(number: int) -> int:
    """Be a step of a chain."""
    return number


@dramatiq.actor(queue_name="bench")
def first(number: int, pad: str) -> int:
    """Begin a chain."""
    return number


@dramatiq.actor(queue_name="bench")
def last(number: int) -> None:
    """Note that a chain has ended."""
    mark(number)


@dramatiq.actor(queue_name="bench", store_results=True)
def kept(number: int, pad: str) -> int:
    """Note the time, and return what is kept."""
    mark(number)
    return number


def _start_chain(number: int) -> None:
    steps = [step.message() for _ in range(3)]
    pipeline([first.message(number, PAD), *steps, last.message()]).run()


def _start_group(number: int) -> None:
    # Its callback gets no values.
    calls = group(first.message(number, PAD) for _ in range(GROUP_CALLS))
    calls.add_completion_callback(last.message(number))
    calls.run()


def _work() -> None:
    words = ("benchmarks.peers.dramatiq", "-p", "1", "-t", str(concurrency(8)))
    execute("dramatiq", *words, dramatiq_queue_prefetch=str(batch(200)))


DRIVER = Driver(
    settings="1 process, 8 threads (100 for waiting handlers), dramatiq_queue_prefetch=200",
    send=lambda number: job.send(number, PAD),
    work=_work,
    flows={
        "chain": _start_chain,
        "group": _start_group,
        "result": lambda number: kept.send(number, PAD),
    },
)
