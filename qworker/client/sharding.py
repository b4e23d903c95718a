"""Dividing a queue into more shards, or fewer, while it is in use.

More: workers receive from the new shards before anybody sends there. Fewer: nothing is sent any more to those that are
to go, and workers go on with them until they are empty. No message is moved, so none can be lost on the way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands import configuring
from qworker.client.commands.command import Command, Pause
from qworker.client.commands.inspecting import Inspection, inspect
from qworker.client.commands.registering import registered, retire
from qworker.client.options import COMMON_META
from qworker.client.plan import Plan, server_ms
from qworker.client.queue_ref import QueueRef
from qworker.client.statistics import workers_on
from qworker.config.kinds import IntegerKind
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidOptionError
from qworker.wire.keys import workers_key
from qworker.wire.names import MAX_SHARDS
from qworker.wire.shards import Shards

__all__ = ["Division", "divide", "division"]

_NUMBER: Final = IntegerKind("shards", minimum=1, maximum=MAX_SHARDS)
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Division:
    """The shards of a queue: messages are sent to the first `active`; `shards` are all that may hold some.

    Those behind the active ones are `draining`: they run empty, and are given up then.
    """

    queue: str
    active: int
    shards: tuple[Inspection, ...]

    @property
    def draining(self) -> tuple[Inspection, ...]:
        """The shards that are to run empty."""
        return self.shards[self.active :]


def division(queue: QueueRef) -> Plan[Division]:
    """Tell which shards the queue has, and what they hold. One call, and one for each shard."""
    known: Shards = yield registered(queue.registry, queue.keys.name)
    seen = []
    for number in range(known.kept):
        seen.append((yield inspect(queue.shard_of(number).keys)))
    return Division(queue.keys.name, known.active, tuple(seen))


def divide(queue: QueueRef, shards: int, *, wait: Duration = "15s") -> Plan[Division]:
    """Divide the queue into `shards` (1-64) from now on; returns what it has then. May be called again at any time.

    Before anything is sent to new shards it waits, up to `wait`, until all workers of the queue receive from them.
    Shards that are to go run empty first: calling it again gives up those that have.
    """
    number = _NUMBER.check(shards, "shards")
    if queue.single:
        raise InvalidOptionError(
            "queue", f"{queue.keys.queue!r} is a shard", f"divide {queue.keys.name!r}"
        )
    limit_s = duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    yield from queue.announce()
    known: Shards = yield registered(queue.registry, queue.keys.name)
    if number > known.active:
        kept = max(known.kept, number)
        yield from _make_ready(queue, known.active, number)
        known = yield from queue.divide(Shards(known.active, kept, known.epoch + 1))
        yield from _wait_for_workers(queue, kept, limit_s)
        known = yield from queue.divide(Shards(number, kept, known.epoch + 1))
    elif number < known.active:
        known = yield from queue.divide(Shards(number, known.kept, known.epoch + 1))
    for each in range(known.active, known.kept):
        yield configuring.configure(queue.shard_of(each).keys, {"draining": "1"})
    yield from give_up_empty(queue)
    return (yield from division(queue))


def give_up_empty(queue: QueueRef) -> Plan[bool]:
    """Give up shards that were to run empty and have, from the last one on; returns whether there were any.

    They keep their mark, so that who has not heard of it sends nothing there.
    """
    known: Shards = yield registered(queue.registry, queue.keys.name)
    kept = known.kept
    while kept > known.active:
        seen: Inspection = yield inspect(queue.shard_of(kept - 1).keys)
        if seen.stored or seen.dead or seen.leases or seen.meta.get("draining") != "1":
            break
        yield from _hand_over_totals(queue, kept - 1)
        kept -= 1
    if kept < known.kept:
        yield from queue.divide(Shards(known.active, kept, known.epoch + 1))
    return kept < known.kept


def _hand_over_totals(queue: QueueRef, number: int) -> Plan[None]:
    """Let the first shard count on from the totals of another one, so that those of the queue do not fall.

    Two servers change one after the other: who is killed in between loses these totals, and a lost reply may lose
    some or count one twice. They are figures; no message hangs on them.
    """
    totals: dict[str, int] = yield retire(queue.shard_of(number).keys)
    for name, total in totals.items():
        yield Command(None, (), ("HINCRBY", queue.keys.stats, name, total), int)


def _make_ready(queue: QueueRef, first: int, end: int) -> Plan[None]:
    """Give shards the attributes of the queue, which is made if it is new, before anything is sent to them."""
    seen: Inspection = yield inspect(queue.keys)
    if not seen.exists:
        yield configuring.configure(queue.keys, {})
    for number in range(first, end):
        shard: Inspection = yield inspect(queue.shard_of(number).keys)
        cleared = dict.fromkeys(_settable(shard.meta), "")
        attributes = {**cleared, **_settable(seen.meta), "draining": ""}
        yield configuring.configure(queue.shard_of(number).keys, attributes)


def _settable(meta: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in meta.items() if name in COMMON_META}


def _wait_for_workers(queue: QueueRef, kept: int, limit_s: float) -> Plan[None]:
    """Wait until every worker of the queue receives from so many shards of it, or the time is up."""
    end = time.monotonic() + limit_s
    wanted = set(Shards(kept, kept).names(queue.keys.name))
    while True:
        now_ms: int = yield server_ms()
        entries: list[Any] = yield Command(None, (), ("HVALS", workers_key(queue.namespace)), list)
        workers = [each for entry in entries for each in workers_on(entry, queue.keys.name, now_ms)]
        if all(wanted <= set(each.get("shards", ())) for each in workers) or time.monotonic() > end:
            return
        yield Pause(_LOOK_S)
