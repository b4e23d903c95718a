"""Pause and resume one direction of a queue, and leave the other as it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from qworker.client.inspect.peek import Inspection, inspect
from qworker.client.manage.attributes import pause
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef

__all__ = ["PAUSES", "change_pauses"]

#: The directions in which a queue is paused → what that means.
PAUSES: Final = {
    "": "not paused",
    "in": "paused in: sends are refused",
    "out": "paused out: nothing is delivered",
    "all": "paused: sends are refused, nothing is delivered",
}


def change_pauses(
    queue: QueueRef,
    *,
    close: Collection[str] = (),
    reopen: Collection[str] = (),
    strict: bool = False,
) -> Plan[Inspection]:
    """Close and reopen directions ('in', 'out'); without any, change nothing. Returns what is paused then.

    `strict`: timed-out messages are requeued after the pause of the input; kept while the input stays paused.
    """
    inspection = yield from inspect(queue)
    if not (close or reopen):
        return inspection
    paused = {"in", "out"} if inspection.paused == "all" else {inspection.paused} - {""}
    paused = (paused | {*close}) - {*reopen}
    direction = "all" if len(paused) == 2 else next(iter(paused), "none")
    keeps = (strict or inspection.strict) and "in" in paused
    yield from pause(queue, direction, strict=keeps)
    return (yield from inspect(queue))
