"""Taskiq, over a stream: the broker of its that acks."""

from __future__ import annotations

import asyncio

from taskiq_redis import RedisStreamBroker

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, batch, concurrency, execute, mark

broker = RedisStreamBroker(url=URL, xread_count=batch(100))


@broker.task(task_name="job")
async def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        await asyncio.sleep(SLEEP_S)


async def _send(number: int) -> None:
    await job.kiq(number, PAD)


def _work() -> None:
    at_once = str(concurrency(100))
    execute(
        "taskiq",
        *("worker", "benchmarks.peers.taskiq:broker", "--workers", "1", "--log-level", "ERROR"),
        *("--max-async-tasks", at_once, "--max-prefetch", at_once),
    )


DRIVER = Driver(
    settings="RedisStreamBroker, 1 worker, max-async-tasks 100, max-prefetch 100, xread_count 100 "
    "(its default), uvloop",
    send=_send,
    work=_work,
    enter=broker.startup,
)
