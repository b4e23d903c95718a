"""Repid."""

from __future__ import annotations

import asyncio

import uvloop
from repid import RedisServer, Repid, Router

from benchmarks.peers.driver import PAD, SLEEP_S, URL, Driver, batch, concurrency, mark

app = Repid(title="bench", version="1")
app.servers.register_server("default", RedisServer(URL, batch_size=batch(100)), is_default=True)
router = Router()


@router.actor
async def job(number: int, pad: str) -> None:
    """Note the time, and wait."""
    mark(number)
    if SLEEP_S:
        await asyncio.sleep(SLEEP_S)


app.include_router(router)


async def _open() -> None:
    # Kept: one that is collected closes its connection.
    _open.connection = app.servers.default.connection()  # type: ignore[attr-defined]
    await _open.connection.__aenter__()  # type: ignore[attr-defined]


async def _send(number: int) -> None:
    body = {"number": number, "pad": PAD}
    await app.send_message_json(channel="default", payload=body, headers={"topic": "job"})


async def _run() -> None:
    async with app.servers.default.connection():
        await app.run_worker(tasks_limit=concurrency(1000))


def _work() -> object:
    uvloop.install()
    return _run()


DRIVER = Driver(
    settings="streams, batch_size 100, tasks_limit 1000 (its default), uvloop",
    send=_send,
    work=_work,
    enter=_open,
)
