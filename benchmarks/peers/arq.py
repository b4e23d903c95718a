"""arq."""

from __future__ import annotations

import asyncio
from typing import Any

import arq
import uvloop
from arq.connections import RedisSettings

from benchmarks.peers.driver import PAD, SLEEP_S, Driver, concurrency, mark, port


async def job(context: Any, number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        await asyncio.sleep(SLEEP_S)


_SETTINGS = RedisSettings(host="127.0.0.1", port=port())


async def _open() -> None:
    _open.pool = await arq.create_pool(_SETTINGS)  # type: ignore[attr-defined]


async def _send(number: int) -> None:
    await _open.pool.enqueue_job("job", number, PAD)  # type: ignore[attr-defined]


def _work() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    arq.Worker(
        [job],
        redis_settings=_SETTINGS,
        max_jobs=concurrency(100),
        keep_result=0,
        poll_delay=0.01,
        log_results=False,
    ).run()


DRIVER = Driver(
    settings="max_jobs 100, keep_result 0, poll_delay 10 ms, log_results off, uvloop",
    send=_send,
    work=_work,
    enter=_open,
)
