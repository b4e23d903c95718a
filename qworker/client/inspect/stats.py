"""Statistics of a queue: its age and idle time, its consumers, messages in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from qworker.client.per_shard import everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import inspect
from qworker.engine.raw import raw
from qworker.wire.keys import workers_key
from qworker.wire.numbers import whole
from qworker.wire.presence import WorkerDocument

__all__ = ["QueueStat", "inspections", "stat", "workers_of"]

_LANES: Final = 1000
#: The most calls of the search for the last send.
_CALLS: Final = 16


class QueueStat(msgspec.Struct, frozen=True):
    """A queue at an instant `now_ms`; message counts cover its lifetime.

    `age_s`: since it was created, None if its first message created it. `idle_s`: since the last send; 0 while messages
    are unacked, None if the last send is too long ago to be known (15 minutes, without a journal). `consumers`: worker
    processes that receive from it, of which `blocked` hold no messages and wait.
    """

    queue: str
    now_ms: int
    ready: int
    age_s: float | None
    idle_s: float | None
    consumers: int
    blocked: int
    messages_in: int
    messages_out: int
    paused: str
    strict: bool

    def rates_since(self, earlier: QueueStat) -> tuple[float, float]:
        """Messages in and out per second since an earlier inspection."""
        seconds = max(0.001, (self.now_ms - earlier.now_ms) / 1000)
        return (
            max(0, self.messages_in - earlier.messages_in) / seconds,
            max(0, self.messages_out - earlier.messages_out) / seconds,
        )


def together(shards: Sequence[QueueStat]) -> QueueStat:
    """Add up the shards of a queue; a worker receives from all of them."""
    first = shards[0]
    ages_s = [shard.age_s for shard in shards if shard.age_s is not None]
    idle_s = [shard.idle_s for shard in shards if shard.idle_s is not None]
    return replace(
        first,
        now_ms=max(shard.now_ms for shard in shards),
        ready=sum(shard.ready for shard in shards),
        age_s=max(ages_s, default=None),
        idle_s=min(idle_s, default=None),
        messages_in=sum(shard.messages_in for shard in shards),
        messages_out=sum(shard.messages_out for shard in shards),
    )


@everywhere(together, reads=True)
def stat(queue: QueueRef) -> Plan[QueueStat]:
    """Read the queue's age and idle time, its consumers, messages in and out, and its pause.

    A few calls: one per thousand clients that have sent lately, one for the workers.
    """
    keys = queue.keys
    inspection: inspect.Inspection = yield inspect.inspect(keys)
    last_ms = yield from _last_activity_ms(queue)
    workers = yield from workers_of(queue, inspection.now_ms)
    children = [child for worker in workers for child in worker.children]
    created_ms = inspection.created_ms
    idle_s = None if last_ms is None else max(0, inspection.now_ms - last_ms) / 1000
    return QueueStat(
        keys.queue,
        inspection.now_ms,
        inspection.ready,
        None if created_ms is None else max(0, inspection.now_ms - created_ms) / 1000,
        0.0 if inspection.unacked else idle_s,
        len(children),
        sum(not child.in_hand for child in children),
        inspection.stats.get("sent", 0),
        inspection.stats.get("received", 0),
        inspection.paused,
        inspection.strict,
    )


def inspections(queue: QueueRef) -> Plan[list[inspect.Inspection]]:
    """Inspect each shard of a queue. One call per shard."""
    seen: list[inspect.Inspection] = []
    for shard in (yield from queue.every_shard()):
        seen.append((yield inspect.inspect(shard.keys)))
    return seen


def _last_activity_ms(queue: QueueRef) -> Plan[int | None]:
    """Return the time of the last send on a lane, or of the last journal entry."""
    times: list[int] = []
    for place in (queue.keys.stats, queue.keys.producers):
        cursor = "0"
        for _ in range(_CALLS):
            reply: list[Any] = yield raw("HSCAN", place, cursor, "COUNT", _LANES, decode=list)
            # A lane is a number and a time; a counter is a number alone.
            lanes = (lane.split(b" ", 2) for lane in reply[1][1::2])
            times += [
                at_ms for words in lanes if (at_ms := whole(b"".join(words[1:2]))) is not None
            ]
            cursor = reply[0].decode()
            if cursor == "0":
                break
    entries: list[Any] = yield raw(
        "XREVRANGE", queue.keys.journal, "+", "-", "COUNT", 1, decode=list
    )
    for _, fields in entries:
        at_ms = whole(dict(zip(fields[::2], fields[1::2], strict=True)).get(b"t"))
        times += [] if at_ms is None else [at_ms]
    return max(times, default=None)


def workers_of(queue: QueueRef, now_ms: int) -> Plan[list[WorkerDocument]]:
    """Read the workers that are alive and receive from the queue. One call."""
    stored: list[bytes] = yield raw("HVALS", workers_key(queue.namespace), decode=list)
    workers = map(WorkerDocument.parse, stored)
    return [worker for worker in workers if worker.serves(queue.keys.name, now_ms)]
