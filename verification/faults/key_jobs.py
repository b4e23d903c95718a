"""Messages with unique keys, and schedules that must not overlap: `qworker run verification.faults.key_jobs:app`.

A key is `<producer>/<kind><number of its unique key>-<number>`, see `key_producer`.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from qworker import Retry
from verification.faults.jobs import app, delivery, history

__all__ = ["app", "keyed", "scheduled_wait", "scheduled_work"]

_FAILS_EVERY: Final = 3
_retry = Retry.fixed("100ms")
#: How long a scheduled handler takes, of a schedule every second.
_WORK_S: Final = (0.1, 0.1, 1.5)
#: Longer than any schedule leaves it alone: it ends by a cancel.
_WAIT_S: Final = 6.0


@app.task(queue="load", retry=_retry)
def keyed(key: str, nap_ms: int = 0) -> None:
    """Note the start, take a while, note the end; one of three fails at its first delivery."""
    receives = delivery().receive_count
    history.note("started", key, receives)
    time.sleep(nap_ms / 1000)
    if receives == 1 and int(key.rpartition("-")[2]) % _FAILS_EVERY == 0:
        history.note("failed", key)
        raise RuntimeError(key)
    history.note("done", key)


@app.task(queue="load", retry=_retry)
def scheduled_work(number: int) -> None:
    """Note the start and the end of a slot, some of which last longer than until the next one."""
    message_id = delivery().message_id
    history.note("slot_began", message_id, number)
    time.sleep(random.choice(_WORK_S))
    history.note("slot_ended", message_id, number)
    history.note("scheduled", message_id)


@app.task(queue="load", retry=_retry)
async def scheduled_wait(number: int) -> None:
    """Wait to be cancelled by the next slot."""
    message_id = delivery().message_id
    history.note("slot_began", message_id, number)
    try:
        await asyncio.sleep(_WAIT_S)
    finally:
        history.note("slot_ended", message_id, number)
    history.note("scheduled", message_id)
