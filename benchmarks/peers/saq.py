"""SAQ."""

from __future__ import annotations

import asyncio
from typing import Any

import saq
import uvloop

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, concurrency, mark

_QUEUE = saq.Queue.from_url(URL, name="bench")


async def job(context: Any, *, number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        await asyncio.sleep(SLEEP_S)


async def _send(number: int) -> None:
    await _QUEUE.enqueue("job", number=number, pad=PAD, ttl=-1)


def _work() -> Any:
    uvloop.install()
    return saq.Worker(_QUEUE, functions=[job], concurrency=concurrency(50)).start()


DRIVER = Driver(
    settings="concurrency 50 (100 for waiting handlers), ttl -1 (no results), orjson, uvloop",
    send=_send,
    work=_work,
    enter=_QUEUE.connect,
)
