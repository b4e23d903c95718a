"""Scan queues and messages in pages, each with the cursor of the next one.

A message that stays comes at least once. A message that moves during the scan may come twice; one that comes or goes
may be missed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from qworker.client.dead import verbs
from qworker.client.inspect import peek
from qworker.client.inspect.walk import ListWalk
from qworker.client.limits import check_state
from qworker.client.message import Stored
from qworker.client.namespace.queues import existing, is_queue
from qworker.client.page_size import PageSize
from qworker.client.per_shard import of_one_shard
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.index import NamesPage, names
from qworker.engine.inspect import lengths
from qworker.engine.message import NEVER_MS, SEATS_FROM
from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError, QworkerError
from qworker.telemetry.logger import logger
from qworker.wire.ids import EntryId
from qworker.wire.keys import LEVELS, QueueKeys
from qworker.wire.states import STATES

if TYPE_CHECKING:
    from qworker.client.execute.aio import AsyncClient
    from qworker.client.execute.sync import Client

__all__ = [
    "END",
    "Page",
    "QueueLength",
    "aiterate",
    "iterate",
    "scan_page",
    "scan_queues",
]

T = TypeVar("T")

_log = logger(__name__)

#: The cursor of the first page, and the one after the last page.
END: Final = "0"
_MAX_COUNT: Final = 1000
#: The most calls per page, and leases per call.
_CALLS: Final = 16
_LEASES: Final = 4


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a scan, possibly empty; `cursor` is that of the next page, `END` after the last."""

    cursor: str
    items: list[T]


class QueueLength(msgspec.Struct, frozen=True):
    """A queue and its number of ready messages; None if a key of it holds another type."""

    queue: str
    ready: int | None


def iterate(client: Client, page: Callable[[str], Plan[Page[T]]]) -> Iterator[T]:
    """Iterate over the items of all pages."""
    cursor = END
    while True:
        read = client.run(page(cursor))
        yield from read.items
        cursor = read.cursor
        if cursor == END:
            return


async def aiterate(client: AsyncClient, page: Callable[[str], Plan[Page[T]]]) -> AsyncIterator[T]:
    """Iterate over the items of all pages, in async code."""
    cursor = END
    while True:
        read = await client.run(page(cursor))
        for item in read.items:
            yield item
        cursor = read.cursor
        if cursor == END:
            return


def scan_queues(
    namespace: str, cursor: str, *, count: int, minlen: int = 0, maxlen: int | None = None
) -> Plan[Page[QueueLength]]:
    """Read a page of about `count` (1-1,000) queues that have `minlen` to `maxlen` ready messages. Two calls."""
    _check(count)
    if not cursor.isdecimal():
        raise _bad_cursor(cursor)
    page: NamesPage = yield names(namespace, cursor, count)
    shards = yield from existing(namespace, [name for name in page.names if is_queue(name)])
    every_shard = [
        QueueKeys(namespace, shard) for name in sorted(shards) for shard in shards[name].names(name)
    ]
    ready: dict[str, int | None] = dict.fromkeys(sorted(shards), 0)
    # A small index comes as a whole, regardless of the count.
    for first in range(0, len(every_shard), _MAX_COUNT // 10):
        some = every_shard[first : first + _MAX_COUNT // 10]
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

    At most 16 calls. Ready messages come newest first. A shard that cannot be read is logged (`shard_unread`) and left
    out.
    """
    _check(count)
    wanted = states or STATES
    shards = yield from queue.every_shard()
    number, _, rest = cursor.rpartition("@")
    if not (number or "0").isdecimal() or int(number or "0") >= len(shards):
        raise _bad_cursor(cursor)
    at = int(number or "0")
    try:
        page = yield from _scan(shards[at], rest, wanted, count, cursor)
    except QworkerError as error:
        if len(shards) == 1 or not of_one_shard(error):
            raise
        _log.warning("shard_unread", queue=shards[at].keys.queue, error=str(error))
        page = Page(END, [])
    if page.cursor != END:
        return Page(f"{at}@{page.cursor}" if at else page.cursor, page.items)
    after = f"{at + 1}@{END}" if at + 1 < len(shards) else END
    return Page(after, page.items)


def _scan(
    queue: QueueRef, cursor: str, wanted: Sequence[str], count: int, given: str
) -> Plan[Page[Stored]]:
    """Read one page of one shard."""
    parts = _parts(wanted)
    part, _, position = (parts[0] if cursor == END else cursor).partition("/")
    if part not in parts:
        raise _bad_cursor(given)
    index, messages = parts.index(part), []
    for _ in range(_CALLS):
        try:
            stored, position = yield from _step(queue, part, position, count)
        except ValueError:
            raise _bad_cursor(given) from None
        messages += [message for message in stored if message.state in wanted]
        if not position:
            index += 1
            if index == len(parts):
                return Page(END, messages)
            part = parts[index]
        if len(messages) >= count:
            break
    return Page(f"{part}/{position}", messages)


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


def _step(queue: QueueRef, part: str, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    """Read some messages of one part; returns them and where to continue, '' at the end."""
    keys = queue.keys
    match part:
        case "delayed":
            return (yield from _delayed(queue, position, count))
        case "unacked":
            return (yield from _unacked(queue, position))
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
    reply: list[Any] = yield raw(
        "ZSCAN", queue.keys.delayed, int(position or 0), "COUNT", count, decode=list
    )
    messages = [
        message
        for item, due_ms in peek.scored(reply[1])
        if (message := queue.stored("delayed", item, due_ms)).state != "ready"  # see _groups
    ]
    after = reply[0].decode()
    return messages, "" if after == "0" else after


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


def _unacked(queue: QueueRef, position: str) -> Plan[tuple[list[Stored], str]]:
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
        messages += yield from peek.lease(queue, lease_id, deadline_ms)
    if len(leases) < _LEASES:
        return messages, ""
    return messages, f"{fresh[-1][0]}~{fresh[-1][1]}"


def _fits(length: int | None, minlen: int, maxlen: int | None) -> bool:
    if length is None:
        return minlen == 0 and maxlen is None
    return length >= minlen and (maxlen is None or length <= maxlen)


def _check(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_COUNT:
        raise InvalidOptionError(
            "count", f"{ascii(count)[:80]} is out of range", f"a number from 1 to {_MAX_COUNT}"
        )


def _bad_cursor(cursor: str) -> InvalidOptionError:
    return InvalidOptionError(
        "cursor",
        f"{ascii(cursor)[:80]} is not a cursor of this scan",
        f"start with {END}, continue with the cursor of the last page and the same states",
    )
