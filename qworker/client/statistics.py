"""What a queue does: since when it is there and idle, who waits for it, what came and went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from qworker.client.commands import inspecting
from qworker.client.commands.command import Command
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import everywhere
from qworker.errors import InvalidBodyError
from qworker.wire.codec import decode
from qworker.wire.keys import workers_key
from qworker.wire.numbers import whole

__all__ = ["QueueStat", "stat", "workers_on"]

#: A worker that is silent for so long, in ms, is gone.
_GONE_MS: Final = 15_000
_LANES: Final = 1000
#: Calls that the look for the last send makes at most.
_CALLS: Final = 16


@dataclass(frozen=True, slots=True)
class QueueStat:
    """A queue at an instant `now_ms`; numbers of messages count from its beginning.

    `age_s`: since it was made, None for one that came to be by its first message. `idle_s`: since something was sent; 0
    while messages are in hand, None where the last send is too long ago to be known (15 minutes, without a journal).
    `consumers`: processes of workers that take from it, of which `blocked` have nothing in hand and wait.
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
        """Messages that came and went per second since an earlier look."""
        seconds = max(0.001, (self.now_ms - earlier.now_ms) / 1000)
        return (
            max(0, self.messages_in - earlier.messages_in) / seconds,
            max(0, self.messages_out - earlier.messages_out) / seconds,
        )


def together(shards: Sequence[QueueStat]) -> QueueStat:
    """Add up the shards of a queue; a worker takes from all of them."""
    first = shards[0]
    ages_s = [each.age_s for each in shards if each.age_s is not None]
    idle_s = [each.idle_s for each in shards if each.idle_s is not None]
    return replace(
        first,
        now_ms=max(each.now_ms for each in shards),
        ready=sum(each.ready for each in shards),
        age_s=max(ages_s, default=None),
        idle_s=min(idle_s, default=None),
        messages_in=sum(each.messages_in for each in shards),
        messages_out=sum(each.messages_out for each in shards),
    )


@everywhere(together)
def stat(queue: QueueRef) -> Plan[QueueStat]:
    """Tell what the queue does: its age and idle time, who waits for it, what came and went, its pause.

    A few calls: one for a thousand clients that have sent lately, one for the workers.
    """
    keys = queue.keys
    seen: inspecting.Inspection = yield inspecting.inspect(keys)
    last_ms = yield from _last_activity_ms(queue)
    entries: list[bytes] = yield Command(None, (), ("HVALS", workers_key(queue.namespace)), list)
    workers = [each for entry in entries for each in workers_on(entry, keys.name, seen.now_ms)]
    children = [
        child
        for worker in workers
        if isinstance(some := worker.get("children"), list)
        for child in some
        if isinstance(child, dict)
    ]
    created_ms = seen.created_ms
    idle_s = None if last_ms is None else max(0, seen.now_ms - last_ms) / 1000
    return QueueStat(
        keys.queue,
        seen.now_ms,
        seen.ready,
        None if created_ms is None else max(0, seen.now_ms - created_ms) / 1000,
        0.0 if seen.unacked else idle_s,
        len(children),
        sum(not child.get("in_hand") for child in children),
        seen.stats.get("sent", 0),
        seen.stats.get("received", 0),
        seen.paused,
        seen.strict,
    )


def _last_activity_ms(queue: QueueRef) -> Plan[int | None]:
    """The last send of a client that numbers its sends, or the last entry of the journal."""
    times: list[int] = []
    cursor = "0"
    for _ in range(_CALLS):
        reply: list[Any] = yield Command(
            None, (), ("HSCAN", queue.keys.producers, cursor, "COUNT", _LANES), list
        )
        words = (lane.split(b" ", 2) for lane in reply[1][1::2])
        times += [at_ms for each in words if (at_ms := whole(b"".join(each[1:2]))) is not None]
        cursor = reply[0].decode()
        if cursor == "0":
            break
    entries: list[Any] = yield Command(
        None, (), ("XREVRANGE", queue.keys.journal, "+", "-", "COUNT", 1), list
    )
    for _, fields in entries:
        at_ms = whole(dict(zip(fields[::2], fields[1::2], strict=True)).get(b"t"))
        times += [] if at_ms is None else [at_ms]
    return max(times, default=None)


def workers_on(entry: bytes, queue: str, now_ms: int) -> list[dict[str, Any]]:
    """The worker that wrote this of itself, if it is there and receives from the queue; else none."""
    try:
        worker = decode(entry)
        listens = queue in worker["queues"] and now_ms - worker["seen_ms"] <= _GONE_MS
        return [worker] if listens and isinstance(worker, dict) else []
    except (InvalidBodyError, KeyError, TypeError):
        return []  # Nothing that a worker wrote.
