"""Crowds under fire, groups of a thousand calls over four queues: `qworker run verification.faults.crowd_jobs:app`.

A crowd of number n has the keys `<producer>/c<n>-0` to `<producer>/c<n>-999` for its calls, and `<producer>/all-n` for
its callback, which has the last word.
"""

from __future__ import annotations

from typing import Final

from qworker import Failure, Retry
from verification.faults.jobs import app, delivery, history
from verification.faults.load import CROWD_QUEUES

__all__ = ["SIZE", "TASKS", "app", "count"]

SIZE: Final = 1000
_FAILS_EVERY: Final = 97
_retry = Retry.fixed("100ms")


def call(key: str) -> int:
    """Be one call of a crowd; one of 97 fails at its first delivery. Returns its number."""
    receives, number = delivery().receive_count, int(key.rpartition("-")[2])
    history.note("started", key, receives)
    if receives == 1 and number % _FAILS_EVERY == 0:
        raise RuntimeError(key)
    history.note("done", key)
    return number


#: A task of each queue.
TASKS: Final = [
    app.task(name=f"call_{queue}", queue=queue, retry=_retry, result="1m")(call)
    for queue in CROWD_QUEUES
]


@app.task(queue="load", retry=_retry)
def count(values: list[int | Failure], key: str) -> None:
    """Be the callback of a crowd: its values are the numbers of its calls, in order."""
    history.note("started", key, delivery().receive_count)
    history.note("link", key, delivery().message_id)
    if values != list(range(SIZE)):
        history.note("misplaced", key)
    history.note("done", key)
    history.note("ended", key)
