"""Messages of groups under fire: `qworker run verification.faults.group_jobs:app`.

A key is `<producer>/<kind>-<number>`, see `group_producer` and `slots_producer`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from qworker import Retry
from verification.faults.jobs import app, delivery, history

__all__ = ["app", "aslot", "member", "slot"]

_FAILS_EVERY: Final = 17


@app.task(queue="load", retry=Retry.fixed("100ms"))
def member(key: str, nap_ms: int = 0) -> None:
    """Note the start, take a while, note the end; one of seventeen fails at its first delivery."""
    receives = delivery().receive_count
    history.note("started", key, receives)
    if nap_ms:
        time.sleep(nap_ms / 1000)
    if receives == 1 and int(key.rpartition("-")[2]) % _FAILS_EVERY == 0:
        history.note("failed", key)
        raise RuntimeError(key)
    history.note("done", key)


@app.task(queue="load", retry=Retry.fixed("100ms"))
def slot(key: str, nap_ms: int) -> None:
    """Note the start, have a slot for a while, note the end."""
    history.note("started", key, delivery().receive_count)
    time.sleep(nap_ms / 1000)
    history.note("done", key)


@app.task(queue="aload", retry=Retry.fixed("100ms"))
async def aslot(key: str, nap_ms: int) -> None:
    """Do the same on an event loop."""
    history.note("started", key, delivery().receive_count)
    await asyncio.sleep(nap_ms / 1000)
    history.note("done", key)
