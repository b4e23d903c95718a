"""Scan queues and messages in pages, each with the cursor of the next one.

A message that stays comes at least once. A message that moves during the scan may come twice; one that comes or goes
may be missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from qworker.client.checks import check_state
from qworker.client.dead import verbs
from qworker.client.inspect import peek
from qworker.client.inspect.pages import END, MAX_COUNT, Page, Unread, bad_cursor, check_page
from qworker.client.inspect.walk import ListWalk
from qworker.client.message import Stored
from qworker.client.namespace.queues import existing, is_queue
from qworker.client.page_size import PageSize
from qworker.client.per_shard import of_one_key, of_one_shard
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.index import NamesPage, names
from qworker.engine.inspect import lengths
from qworker.engine.message import NEVER_MS, SEATS_FROM
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.ids import EntryId
from qworker.wire.keys import LEVELS, QueueKeys
from qworker.wire.states import STATES

__all__ = ["QueueLength", "scan_page", "scan_queues"]

#: The most calls per page, and leases per call.
_CALLS: Final = 16
_LEASES: Final = 4


class QueueLength(msgspec.Struct, frozen=True):
    """A queue and its number of ready messages; None if a key of it holds another type."""

    queue: str
    ready: int | None


def scan_queues(
    namespace: str, cursor: str, *, count: int, minlen: int = 0, maxlen: int | None = None
) -> Plan[Page[QueueLength]]:
    """Read a page of about `count` (1-1,000) queues that have `minlen` to `maxlen` ready messages. Two calls."""
    check_page(count)
    if not cursor.isdecimal():
        raise bad_cursor(cursor)
    page: NamesPage = yield names(namespace, cursor, count)
    shards = yield from existing(namespace, [name for name in page.names if is_queue(name)])
    every_shard = [
        QueueKeys(namespace, shard) for name in sorted(shards) for shard in shards[name].names(name)
    ]
    ready: dict[str, int | None] = dict.fromkeys(sorted(shards), 0)
    # A small index comes as a whole, regardless of the count.
    for first in range(0, len(every_shard), MAX_COUNT // 10):
        some = every_shard[first : first + MAX_COUNT // 10]
        numbers: list[int | None] = yield lengths(some)
        for keys, number in zip(some, numbers, strict=True):
            so_far = ready[keys.name]
            ready[keys.name] = None if number is None or so_far is None else so_far + number
    queues = [
        QueueLength(name, number) for name, number in ready.items() if _fits(number, minlen, maxlen)
    ]
    return Page(page.cursor, queues)


def scan_page(
    queue: QueueRef, cursor: str = END, *states: str, count: int = 100
) -> Plan[Page[Stored]]:
    """Read one page of a scan: about `count` messages, and the cursor of the next one, '0' after the last.

    At most 16 calls. Ready messages come newest first. A key of another type and a shard that cannot be read are passed
    over, and named in `unread`; if no other key has messages in these states, the error is raised.
    """
    check_page(count)
    wanted = states or STATES
    shards = yield from queue.every_shard()
    number, _, rest = cursor.rpartition("@")
    if not (number or "0").isdecimal() or int(number or "0") >= len(shards):
        raise bad_cursor(cursor)
    at = int(number or "0")
    try:
        page = yield from _scan(shards[at], rest, wanted, count, cursor)
    except QworkerError as error:
        if len(shards) == 1 or not of_one_shard(error):
            raise
        page = Page(END, [], (Unread(shards[at].keys.queue, str(error)),))
    if page.cursor != END:
        return replace(page, cursor=f"{at}@{page.cursor}" if at else page.cursor)
    return replace(page, cursor=f"{at + 1}@{END}" if at + 1 < len(shards) else END)


def _scan(
    queue: QueueRef, cursor: str, wanted: Sequence[str], count: int, given: str
) -> Plan[Page[Stored]]:
    """Read one page of one shard."""
    parts = _parts(wanted)
    part, _, position = (parts[0] if cursor == END else cursor).partition("/")
    if part not in parts:
        raise bad_cursor(given)
    index, messages = parts.index(part), list[Stored]()
    problems: dict[str, None] = {}
    for _ in range(_CALLS):
        try:
            stored, position = yield from _step(queue, part, position, count, problems)
        except ValueError:
            raise bad_cursor(given) from None
        except QworkerError as error:
            if len(parts) == 1 or not of_one_key(error):
                raise
            stored, position = [], ""
            problems[str(error)] = None
        messages += [message for message in stored if message.state in wanted]
        if not position:
            index += 1
            if index == len(parts):
                break
            part = parts[index]
        if len(messages) >= count:
            break
    cursor = f"{part}/{position}" if index < len(parts) else END
    return Page(cursor, messages, tuple(Unread(queue.keys.queue, text) for text in problems))


def _parts(states: Sequence[str]) -> list[str]:
    """Return the parts of a queue to scan for some states, in order."""
    for state in states:
        check_state(state)
    parts = []
    if "ready" in states:
        parts += [*(f"ready-{level}" for level in reversed(range(LEVELS))), "suspect", "groups"]
    if "delayed" in states or "held" in states:
        parts.append("delayed")
    return parts + [state for state in ("unacked", "dead") if state in states]


def _step(
    queue: QueueRef, part: str, position: str, count: int, problems: dict[str, None]
) -> Plan[tuple[list[Stored], str]]:
    """Read some messages of one part; returns them and where to continue, '' at the end.

    Leases of another type are passed over, and added to `problems`.
    """
    keys = queue.keys
    match part:
        case "delayed":
            return (yield from _delayed(queue, position, count))
        case "unacked":
            return (yield from _unacked(queue, position, problems))
        case "dead":
            last = EntryId.parse(position) if position else None
            dead_letters = yield from verbs.dead_of(queue, count, after=last)
            after = dead_letters[-1].entry.in_stream if len(dead_letters) >= count else ""
            return [dead_letter.message for dead_letter in dead_letters], after
        case "groups":
            return (yield from _groups(queue, position, count))
        case "suspect":
            return (yield from _list(queue, keys.suspect, position, count))
    return (yield from _list(queue, keys.ready[int(part[-1])], position, count))


def _list(queue: QueueRef, key: str, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    walk = ListWalk(key, count, behind=int(position or 0))
    messages: list[Stored] = []
    while len(messages) < count and not walk.ended:
        items = yield from walk.page(count - len(messages))
        messages += [queue.stored("ready", item) for item in items]
    return messages, "" if walk.ended else str(walk.behind)


def _delayed(queue: QueueRef, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    cursor, size, looked = int(position or 0), PageSize(count), 0
    messages: list[Stored] = []
    while looked < count:
        asked = size.limit(count - looked)
        looked += asked
        words = ("ZSCAN", queue.keys.delayed, cursor, "COUNT", asked)
        reply: list[Any] = yield raw(*words, decode=list)
        cursor = int(reply[0])
        size.saw(map(len, reply[1][::2]))
        messages += [
            message
            for item, due_ms in peek.scored(reply[1])
            if (message := queue.stored("delayed", item, due_ms)).state != "ready"  # see _groups
        ]
        if not cursor:
            return messages, ""
    return messages, str(cursor)


def _groups(queue: QueueRef, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    """Read members that wait in groups; their scores in delayed are seats, each of one message."""
    low, size = position or str(SEATS_FROM), PageSize(count)
    messages: list[Stored] = []
    while len(messages) < count:
        asked = size.limit(count - len(messages))
        words = ("ZRANGEBYSCORE", queue.keys.delayed, low, f"({NEVER_MS}")
        flat: list[bytes] = yield raw(*words, "WITHSCORES", "LIMIT", 0, asked, decode=list)
        messages += [queue.stored("delayed", item, seat) for item, seat in peek.scored(flat)]
        if len(flat) < 2 * asked:
            return messages, ""
        low = f"({int(flat[-1])}"
        size.saw(map(len, flat[::2]))
    return messages, low


def _unacked(
    queue: QueueRef, position: str, problems: dict[str, None]
) -> Plan[tuple[list[Stored], str]]:
    # By deadline: an extended lease moves behind the cursor and comes again, so none is missed.
    score, _, last = position.partition("~")
    low = int(score) if score else "-inf"
    skipped = 0
    while True:
        words = ("ZRANGE", queue.keys.unacked, low, "+inf", "BYSCORE")
        limit = ("LIMIT", skipped, _LEASES, "WITHSCORES")
        flat: list[bytes] = yield raw(*words, *limit, decode=list)
        leases = [
            (deadline_ms, lease_id.decode("utf-8", "replace"))
            for lease_id, deadline_ms in peek.scored(flat)
        ]
        fresh = [lease for lease in leases if not score or lease > (int(score), last)]
        if fresh or len(leases) < _LEASES:
            break
        skipped += _LEASES
    messages: list[Stored] = []
    for deadline_ms, lease_id in fresh:
        try:
            messages += yield from peek.lease(queue, lease_id, deadline_ms)
        except QworkerError as error:
            if not of_one_key(error):
                raise
            problems[str(error)] = None
    if len(leases) < _LEASES:
        return messages, ""
    return messages, f"{fresh[-1][0]}~{fresh[-1][1]}"


def _fits(length: int | None, minlen: int, maxlen: int | None) -> bool:
    if length is None:
        return minlen == 0 and maxlen is None
    return length >= minlen and (maxlen is None or length <= maxlen)
