"""Dividing a queue into more shards, or fewer, while it is in use.

More: workers receive from the new shards before anybody sends there. Fewer: nothing is sent any more to those that are
to go, and workers go on with them until they are empty. No message is moved, so none can be lost on the way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands import configuring
from qworker.client.commands import sharding as commands
from qworker.client.commands.command import Brief, Command, Pause
from qworker.client.commands.index import announce, present
from qworker.client.commands.inspecting import Inspection, inspect
from qworker.client.commands.sharding import adopt, common_meta, mark, read_shards, retire
from qworker.client.plan import Plan, server_ms
from qworker.client.queue_ref import QueueRef
from qworker.client.statistics import workers_on
from qworker.config.kinds import IntegerKind
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidOptionError, ShardsChangedError
from qworker.wire.keys import workers_key
from qworker.wire.names import MAX_SHARDS
from qworker.wire.shards import UNMARKED, Mark, Shards

__all__ = ["Division", "divide", "division", "give_up_empty", "tend"]

_NUMBER: Final = IntegerKind("shards", minimum=1, maximum=MAX_SHARDS)
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
_LOOK_S: Final = 0.5
#: Tries of a division while others divide the queue.
_TRIES: Final = 5


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
    known: Shards = yield read_shards(queue.keys)
    seen = []
    for number in range(known.kept):
        seen.append((yield inspect(queue.shard_of(number).keys)))
    return Division(queue.keys.name, known.active, tuple(seen))


def divide(queue: QueueRef, shards: int, *, wait: Duration = "15s") -> Plan[Division]:
    """Divide the queue into `shards` (1-64) from now on; returns what it has then. May be called again at any time.

    Before anything is sent to new shards it waits, up to `wait`, until all workers of the queue receive from them.
    Shards that are to go run empty first: calling it again gives up those that have. Of two calls at the same time the
    later one holds. Raises `ShardsChangedError` where others divide the queue all the time.
    """
    number = _NUMBER.check(shards, "shards")
    if queue.single:
        raise InvalidOptionError(
            "queue", f"{queue.keys.queue!r} is a shard", f"divide {queue.keys.name!r}"
        )
    limit_s = duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    seen: Inspection = yield inspect(queue.keys)
    if not seen.exists:
        yield configuring.configure(queue.keys, {})
    for _ in range(_TRIES):
        known = yield from _known(queue)
        changed, known = yield from _divided(queue, known, number, limit_s)
        queue.learn(known)
        if changed:
            break
    else:
        raise ShardsChangedError(queue.keys.name, known.active)
    yield from queue.announce()
    for each in range(1, known.kept):
        yield mark(queue.shard_of(each).keys, known)
    yield from give_up_empty(queue)
    return (yield from division(queue))


def _known(queue: QueueRef) -> Plan[Shards]:
    """How the queue is divided, with shards that it has forgotten and that hold messages."""
    yield from queue.look_up()
    found = yield from _stands(queue)
    others = [queue.shard_of(number) for number in range(1, MAX_SHARDS)]
    there: list[Shards | None] = yield present([each.keys for each in others])
    numbers = [each.keys.shard for each, is_there in zip(others, there, strict=True) if is_there]
    found = yield from queue.healed(found, numbers)
    for number in reversed(numbers):
        if number < found.kept:
            break
        if (yield from _holds_some(queue.shard_of(number))):
            _, found = yield commands.divide(queue.keys, found, found.active, number + 1)
            break
    return found


def _stands(queue: QueueRef) -> Plan[Shards]:
    """How the queue is divided as scripts see it: a division that is dated later than now counts as none."""
    _, found = yield adopt(queue.keys, UNMARKED, 1)
    stands: Shards = found
    return stands


def _divided(
    queue: QueueRef, known: Shards, number: int, limit_s: float
) -> Plan[tuple[bool, Shards]]:
    """Change the number of shards; returns whether nobody else did meanwhile, and how the queue is divided then."""
    if number == known.active:
        return True, known
    if number < known.active:
        fewer: tuple[bool, Shards] = yield commands.divide(queue.keys, known, number, known.kept)
        return fewer
    kept = max(known.kept, number)
    # They have their attributes, and workers receive from them, before anything is sent to them.
    yield from _make_ready(queue, known.active, number)
    changed, known = yield commands.divide(queue.keys, known, known.active, kept)
    if not changed:
        return False, known
    places = known.names(queue.keys.name)
    yield Brief(announce(queue.namespace, places))
    yield from _wait_for_workers(queue, kept, limit_s)
    more: tuple[bool, Shards] = yield commands.divide(queue.keys, known, number, kept)
    return more


def tend(queue: QueueRef, numbers: Iterable[int], orphans: Set[int]) -> Plan[tuple[bool, set[int]]]:
    """Look after a divided queue: heal what a failover has lost, and give up shards that have run empty.

    `numbers` are the shards of which there are keys; `orphans` those that held messages at an earlier look although the
    queue did not know of them: by now it is sure that the queue is not just being removed. Returns whether shards were
    given up, and the orphans of this look.
    """
    found = yield from _stands(queue)
    others = sorted(number for number in numbers if number)
    held = set()
    for number in others:
        if number >= found.kept and (yield from _holds_some(queue.shard_of(number))):
            held.add(number)
    remembered = [number for number in others if number < found.kept or number in held & orphans]
    found = yield from queue.healed(found, remembered)
    forgotten = [number for number in held & orphans if number >= found.kept]
    if forgotten:
        _, found = yield commands.divide(queue.keys, found, found.active, max(forgotten) + 1)
    return (yield from give_up_empty(queue)), {each for each in held if each >= found.kept}


def give_up_empty(queue: QueueRef) -> Plan[bool]:
    """Give up shards that were to run empty and have, from the last one on; returns whether there were any.

    They keep their mark, and refuse what is sent.
    """
    known: Shards = yield read_shards(queue.keys)
    kept = known.kept
    while kept > known.active:
        shard = queue.shard_of(kept - 1)
        # It may have missed its division: who was at it is gone, or a failover has lost the mark.
        stands: Mark = yield mark(shard.keys, known)
        if stands.open or (yield from _holds_some(shard)):
            break
        yield from _hand_over_totals(queue, kept - 1)
        kept -= 1
    if kept == known.kept:
        return False
    changed, known = yield commands.divide(queue.keys, known, known.active, kept)
    queue.learn(known)
    return bool(changed)


def _holds_some(shard: QueueRef) -> Plan[bool]:
    seen: Inspection = yield inspect(shard.keys)
    return bool(seen.stored or seen.dead or seen.leases)


def _hand_over_totals(queue: QueueRef, number: int) -> Plan[None]:
    """Let the first shard count on from the totals of another one, so that those of the queue do not fall.

    Two servers change one after the other: who is killed in between loses these totals, and a lost reply may lose
    some or count one twice. They are figures; no message hangs on them.
    """
    totals: dict[str, int] = yield retire(queue.shard_of(number).keys)
    for name, total in totals.items():
        yield Command(None, (), ("HINCRBY", queue.keys.stats, name, total), int)


def _make_ready(queue: QueueRef, first: int, end: int) -> Plan[None]:
    """Give shards the attributes of the queue before anything is sent to them."""
    wanted: dict[str, str] = yield common_meta(queue.keys)
    for number in range(first, end):
        keys = queue.shard_of(number).keys
        has: dict[str, str] = yield common_meta(keys)
        yield configuring.configure(keys, {**dict.fromkeys(has, ""), **wanted})


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
