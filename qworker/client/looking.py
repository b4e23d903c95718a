"""Looking at messages without receiving them: by state, by id, by lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from qworker.client import letters
from qworker.client.commands.command import Command
from qworker.client.commands.inspecting import Inspection, total
from qworker.client.commands.inspecting import inspect as inspect_command
from qworker.client.commands.waiting import NEVER_MS
from qworker.client.limits import check_count, check_skip, check_state
from qworker.client.message import Receipt, Stored
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import until_found
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    QworkerError,
    UnavailableError,
)
from qworker.wire.leases import held_items
from qworker.wire.numbers import score_ms, whole

__all__ = ["inspect", "lease", "peek", "scored", "show"]

_PAGE: Final = 500
#: Leases that one call of a look lists.
_LEASES: Final = 20


def inspect(queue: QueueRef) -> Plan[Inspection]:
    """Read sizes, ages, counters and attributes at one instant; of a divided queue for each shard at its own.

    Of several shards those that cannot be read (one is broken, or its node is away) are named in `unread`, and the
    figures are those of the others; where none can be read, the error of the first is raised.
    """
    shards = yield from queue.every_shard()
    seen: list[Inspection] = []
    unread: list[str] = []
    failed: QworkerError | None = None
    for shard in shards:
        try:
            seen.append((yield inspect_command(shard.keys)))
        except (BrokenQueueError, UnavailableError, InDoubtError, LoadingError) as error:
            unread.append(f"{shard.keys.queue}: {error}")
            failed = failed or error
    if failed is not None and not seen:
        raise failed
    whole_queue = seen[0] if len(shards) == 1 else total(seen)
    return (
        replace(whole_queue, queue=queue.keys.queue, unread=tuple(unread))
        if unread
        else whole_queue
    )


def peek(
    queue: QueueRef,
    count: int = 10,
    *,
    state: str = "ready",
    newest: bool = False,
    skip: int = 0,
) -> Plan[list[Stored]]:
    """Look at messages of a state (ready, delayed, held, unacked, dead) without receiving them.

    At most `count` (1-1,000), in the order of delivery; from the other end with `newest` or a negative count.
    The first `skip` are left out; they are read all the same.
    """
    if isinstance(count, int) and count < 0:
        count, newest = -count, not newest
    check_count(count)
    check_skip(skip)
    check_state(state)
    shards = yield from queue.every_shard()
    found: list[Stored] = []
    for shard in shards:
        found += yield from _peek(shard, skip + count, state, newest=newest)
    if len(shards) > 1:
        # Shards have no order among them; times do.
        found.sort(key=_when, reverse=newest)
    return found[skip : skip + count]


@until_found
def show(queue: QueueRef, message_id: str) -> Plan[Stored | None]:
    """Find a message by its id; None if it is not seen. O(n) of the queue, shard by shard.

    Looks from the tail of ready, then at what is delayed, unacked and dead. A message that moves meanwhile may be
    missed; under receiving alone none is.
    """
    mark = f"q1 {message_id} ".encode()
    for key in (*queue.keys.ready, queue.keys.suspect):
        last, size = -1, PageSize(_PAGE)
        while True:
            asked = size.number
            span = (last - asked + 1, last)
            page: list[bytes] = yield Command(None, (), ("LRANGE", key, *span), list)
            for item in page:
                if item.startswith(mark):
                    return queue.stored("ready", item)
            if len(page) < asked:
                break
            last -= asked
            size.saw(map(len, page))
    first, size = 0, PageSize(_PAGE)
    while True:
        asked = size.number
        words = ("ZRANGE", queue.keys.delayed, first, first + asked - 1, "WITHSCORES")
        flat: list[bytes] = yield Command(None, (), words, list)
        for item, due_ms in scored(flat):
            if item.startswith(mark):
                return queue.stored("delayed", item, due_ms)
        if len(flat) < 2 * asked:
            break
        first += asked
        size.saw(map(len, flat[::2]))
    for each in (yield from _unacked(queue, None, newest=False)):
        if each.id == message_id:
            return each
    letter = yield from letters.letter_of(queue, message_id)
    return None if letter is None else letter.message


def lease(queue: QueueRef, lease_id: str, deadline_ms: int) -> Plan[list[Stored]]:
    """List the messages of a lease in order; none where it is gone."""
    flat: list[bytes] = yield Command(None, (), ("HGETALL", queue.keys.lease(lease_id)), list)
    held = sorted(
        (number, item) for index, item in held_items(flat) if (number := whole(index)) is not None
    )
    return [
        queue.stored("unacked", item, deadline_ms, Receipt(lease_id, str(index), queue.keys.shard))
        for index, item in held
    ]


def scored(flat: list[bytes]) -> Iterator[tuple[bytes, int]]:
    """Pair the members of a sorted set, as they are answered, with their times in ms."""
    for member, score in zip(flat[::2], flat[1::2], strict=True):
        yield member, score_ms(score)


def _peek(queue: QueueRef, count: int, state: str, *, newest: bool) -> Plan[list[Stored]]:
    match state:
        case "ready":
            return (yield from _ready(queue, count, newest=newest))
        case "unacked":
            return (yield from _unacked(queue, count, newest=newest))
        case "dead":
            dead = yield from letters.dead_of(queue, count, newest=newest)
            return [letter.message for letter in dead]
    return (yield from _waiting(queue, count, state, newest=newest))


def _when(message: Stored) -> int:
    return (message.sent_ms or 0) if message.at_ms is None else message.at_ms


def _ready(queue: QueueRef, count: int, *, newest: bool) -> Plan[list[Stored]]:
    found: list[Stored] = []
    lists = (queue.keys.suspect, *reversed(queue.keys.ready))
    for key in reversed(lists) if newest else lists:
        seen, size = 0, PageSize(_PAGE)
        while len(found) < count:
            asked = size.limit(count - len(found))
            span = (-seen - asked, -seen - 1) if newest else (seen, seen + asked - 1)
            items: list[bytes] = yield Command(None, (), ("LRANGE", key, *span), list)
            if newest:
                items.reverse()
            found += [queue.stored("ready", item) for item in items]
            seen += asked
            if len(items) < asked:
                break
            size.saw(map(len, items))
    return found


def _waiting(queue: QueueRef, count: int, state: str, *, newest: bool) -> Plan[list[Stored]]:
    """List what is delayed, or what is held: that waits beside it without a due time."""
    low, high = (NEVER_MS, "+inf") if state == "held" else ("-inf", f"({NEVER_MS}")
    key = queue.keys.delayed
    span = ("ZREVRANGEBYSCORE", key, high, low) if newest else ("ZRANGEBYSCORE", key, low, high)
    found: list[Stored] = []
    size = PageSize(_PAGE)
    while len(found) < count:
        asked = size.limit(count - len(found))
        words = (*span, "WITHSCORES", "LIMIT", len(found), asked)
        flat: list[bytes] = yield Command(None, (), words, list)
        found += [queue.stored("delayed", item, due_ms) for item, due_ms in scored(flat)]
        if len(flat) < 2 * asked:
            break
        size.saw(map(len, flat[::2]))
    return found


def _unacked(queue: QueueRef, count: int | None, *, newest: bool) -> Plan[list[Stored]]:
    verb = "ZREVRANGE" if newest else "ZRANGE"
    found: list[Stored] = []
    first = 0
    while count is None or len(found) < count:
        words = (verb, queue.keys.unacked, first, first + _LEASES - 1, "WITHSCORES")
        flat: list[bytes] = yield Command(None, (), words, list)
        if not flat:
            break
        for name, deadline_ms in scored(flat):
            held = yield from lease(queue, name.decode("utf-8", "replace"), deadline_ms)
            found += held[::-1] if newest else held
        first += _LEASES
    return found[:count]
