"""Read messages without receiving them: by state, by id, by lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from qworker.client.checks import check_count, check_skip, check_state
from qworker.client.dead import verbs
from qworker.client.inspect.find import Search, find_delayed, scored
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.message import Receipt, Stored
from qworker.client.page_size import PageSize
from qworker.client.per_shard import chained, each_readable, of_one_key, of_one_shard, until_found
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.inspect import Inspection, total
from qworker.engine.inspect import inspect as inspect_command
from qworker.engine.message import ANYWHERE, NEVER_MS, SEATS_FROM
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.telemetry.logger import logger
from qworker.wire.leases import held_items
from qworker.wire.numbers import score_ms, whole

__all__ = ["Inspection", "delivered", "find", "inspect", "lease", "peek", "scored", "show"]

_log = logger(__name__)

_PAGE: Final = 500
#: Leases per call.
_LEASES: Final = 20


def inspect(queue: QueueRef) -> Plan[Inspection]:
    """Read sizes, ages, counters and attributes at one instant; of a divided queue for each shard at its own.

    Shards that cannot be read (broken, or their node is away) are named in `unread`, and the figures cover the others;
    if none can be read, the error of the first is raised.
    """
    shards = yield from queue.every_shard()
    inspections: list[Inspection] = []
    unread: list[str] = []
    failed: QworkerError | None = None
    for shard in shards:
        try:
            inspections.append((yield inspect_command(shard.keys)))
        except QworkerError as error:
            if not of_one_shard(error):
                raise
            unread.append(f"{shard.keys.queue}: {error}")
            failed = failed or error
    if failed is not None and not inspections:
        raise failed
    whole_queue = inspections[0] if len(shards) == 1 else total(inspections)
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
    """Read messages of a state (ready, delayed, held, unacked, dead) without receiving them.

    At most `count` (1-1,000), in the order of delivery; from the other end with `newest` or a negative count. Leaves
    out the first `skip`, which are still read. A shard that cannot be read is logged (`shard_unread`).
    """
    if isinstance(count, int) and count < 0:
        count, newest = -count, not newest
    check_count(count)
    check_skip(skip)
    check_state(state)
    shards = yield from queue.every_shard()
    messages = chained(
        (
            yield from each_readable(
                shards, lambda shard: _peek(shard, skip + count, state, newest=newest)
            )
        )
    )
    if len(shards) > 1:
        # Shards have no common order; their times do.
        messages.sort(key=_when, reverse=newest)
    return messages[skip : skip + count]


@until_found
def show(queue: QueueRef, message_id: str) -> Plan[Stored | None]:
    """Find a message by its id; None if it is not found. O(n) of the queue, shard by shard.

    Searches ready messages from the tail, then delayed, unacked and dead ones. A message that moves during the search
    may be missed; receives alone make it miss none.
    """
    message, _ = yield from find(queue, message_id)
    return message


def find(queue: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
    """Find a message in one shard as `show` does, and the location where it was read, for `hold` and `delete`.

    A key of another type is passed over; its error is raised if the message is not found.
    """
    failed: QworkerError | None = None
    for look in (_find_ready, _find_delayed, _find_unacked, _find_dead):
        try:
            found, location = yield from look(queue, message_id)
        except QworkerError as error:
            if not of_one_key(error):
                raise
            failed = failed or error
        else:
            if found is not None:
                return found, location
    if failed is not None:
        raise failed
    return None, ANYWHERE


def lease(queue: QueueRef, lease_id: str, deadline_ms: int) -> Plan[list[Stored]]:
    """List the messages of a lease in order; none if it is gone."""
    flat: list[bytes] = yield raw("HGETALL", queue.keys.lease(lease_id), decode=list)
    items = sorted(
        (number, item) for index, item in held_items(flat) if (number := whole(index)) is not None
    )
    return [
        queue.stored("unacked", item, deadline_ms, Receipt(lease_id, str(index), queue.keys.shard))
        for index, item in items
    ]


def delivered(queue: QueueRef, receipt: Receipt) -> Plan[Stored | None]:
    """Find the message of a receipt in its lease; None if the receipt is stale."""
    shard = queue.shard_of(receipt.shard)
    deadline: bytes | None = yield raw("ZSCORE", shard.keys.unacked, receipt.lease_id)
    if deadline is None:
        return None
    messages = yield from lease(shard, receipt.lease_id, score_ms(deadline))
    return next((message for message in messages if message.receipt == receipt), None)


#: State → range of the scores of delayed.
_SCORES: Final[Mapping[str, tuple[str, str]]] = {
    "delayed": ("-inf", f"({SEATS_FROM}"),
    "ready": (str(SEATS_FROM), f"({NEVER_MS}"),
    "held": (str(NEVER_MS), "+inf"),
}


def _peek(queue: QueueRef, count: int, state: str, *, newest: bool) -> Plan[list[Stored]]:
    match state:
        case "ready":
            return (yield from _with_groups(queue, count, newest=newest))
        case "unacked":
            return (yield from _unacked(queue, count, newest=newest))
        case "dead":
            dead_letters = yield from verbs.dead_of(queue, count, newest=newest)
            return [dead_letter.message for dead_letter in dead_letters]
    return (yield from _waiting(queue, count, state, newest=newest))


def _find_ready(queue: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
    search, failed = Search(queue, [message_id]), None
    while not search.ended:
        try:
            hits = yield from search.page()
        except QworkerError as error:
            if not of_one_key(error):
                raise
            failed = failed or error
            search.skip()
        else:
            for hit in hits:
                return queue.stored("ready", hit.item), hit.location
    if failed is not None:
        raise failed
    return None, ANYWHERE


def _find_delayed(queue: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
    for hit in (yield from find_delayed(queue, [message_id])):
        return queue.stored("delayed", hit.item, hit.due_ms), hit.location
    return None, ANYWHERE


def _find_unacked(queue: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
    # By score, and not by rank: acks of leases before would hide one behind them.
    walk = SortedSetWalk(queue.keys.unacked, _LEASES)
    while not walk.ended:
        for name, score in (yield from walk.page()):
            leased = yield from lease(queue, name.decode("utf-8", "replace"), score_ms(score))
            for message in leased:
                if message.id == message_id:
                    return message, ANYWHERE
    return None, ANYWHERE


def _find_dead(queue: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
    dead_letter = yield from verbs.find_dead(queue, message_id)
    return None if dead_letter is None else dead_letter.message, ANYWHERE


def _when(message: Stored) -> int:
    return (message.sent_ms or 0) if message.at_ms is None else message.at_ms


def _ready(
    queue: QueueRef, count: int, problems: list[QworkerError], *, newest: bool
) -> Plan[list[Stored]]:
    """List the messages of suspect and ready; a list of another type is passed over and added to `problems`."""
    messages: list[Stored] = []
    lists = (queue.keys.suspect, *reversed(queue.keys.ready))
    for key in reversed(lists) if newest else lists:
        try:
            messages += yield from _listed(queue, key, count - len(messages), newest=newest)
        except QworkerError as error:
            if not of_one_key(error):
                raise
            problems.append(error)
    return messages


def _listed(queue: QueueRef, key: str, count: int, *, newest: bool) -> Plan[list[Stored]]:
    messages: list[Stored] = []
    seen, size = 0, PageSize(_PAGE)
    while len(messages) < count:
        asked = size.limit(count - len(messages))
        span = (-seen - asked, -seen - 1) if newest else (seen, seen + asked - 1)
        items: list[bytes] = yield raw("LRANGE", key, *span, decode=list)
        if newest:
            items.reverse()
        messages += [queue.stored("ready", item) for item in items]
        seen += asked
        if len(items) < asked:
            break
        size.saw(map(len, items))
    return messages


def _with_groups(queue: QueueRef, count: int, *, newest: bool) -> Plan[list[Stored]]:
    """List ready messages; those that wait in groups come last. Raises the error of a key if it finds none."""
    problems: list[QworkerError] = []
    messages = [] if newest else (yield from _ready(queue, count, problems, newest=False))
    if len(messages) < count:
        try:
            messages += yield from _waiting(queue, count - len(messages), "ready", newest=newest)
        except QworkerError as error:
            if not of_one_key(error):
                raise
            problems.append(error)
    if newest and len(messages) < count:
        messages += yield from _ready(queue, count - len(messages), problems, newest=True)
    if problems and not messages:
        raise problems[0]
    for problem in problems:
        _log.warning("shard_unread", queue=queue.keys.queue, error=str(problem))
    return messages


def _waiting(queue: QueueRef, count: int, state: str, *, newest: bool) -> Plan[list[Stored]]:
    """List delayed messages, held ones, which have no due time, or members of groups, which are ready."""
    low, high = _SCORES[state]
    key = queue.keys.delayed
    span = ("ZREVRANGEBYSCORE", key, high, low) if newest else ("ZRANGEBYSCORE", key, low, high)
    messages: list[Stored] = []
    size = PageSize(_PAGE)
    while len(messages) < count:
        asked = size.limit(count - len(messages))
        words = (*span, "WITHSCORES", "LIMIT", len(messages), asked)
        flat: list[bytes] = yield raw(*words, decode=list)
        messages += [queue.stored("delayed", item, due_ms) for item, due_ms in scored(flat)]
        if len(flat) < 2 * asked:
            break
        size.saw(map(len, flat[::2]))
    return messages


def _unacked(queue: QueueRef, count: int, *, newest: bool) -> Plan[list[Stored]]:
    messages: list[Stored] = []
    verb, first = "ZREVRANGE" if newest else "ZRANGE", 0
    while len(messages) < count:
        words = (verb, queue.keys.unacked, first, first + _LEASES - 1, "WITHSCORES")
        flat: list[bytes] = yield raw(*words, decode=list)
        if not flat:
            break
        for name, deadline_ms in scored(flat):
            if len(messages) < count:
                leased = yield from lease(queue, name.decode("utf-8", "replace"), deadline_ms)
                messages += leased[::-1] if newest else leased
        first += _LEASES
    return messages[:count]
