"""Going through queues and messages in pages: bounded steps, each with the cursor of the next one.

What is there all the time is seen at least once. What moves meanwhile may be seen twice; what comes or goes, or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qworker.client import letters, looking
from qworker.client.commands.command import Command
from qworker.client.commands.index import NamesPage, names
from qworker.client.commands.inspecting import lengths
from qworker.client.letter_pages import in_stream
from qworker.client.limits import STATES, check_state
from qworker.client.message import Stored
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.registry import is_queue, there
from qworker.errors import InvalidOptionError
from qworker.wire.keys import LEVELS, QueueKeys

if TYPE_CHECKING:
    from qworker.client.aio import AsyncClient
    from qworker.client.sync import Client

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

#: The cursor of the first page, and what stands for it behind the last one.
END: Final = "0"
_MAX_COUNT: Final = 1000
#: Calls that one page makes at most, and leases that one of them reads.
_CALLS: Final = 16
_LEASES: Final = 4


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of what is gone through; `cursor` is that of the next page, `END` after the last. It may be empty before."""

    cursor: str
    items: list[T]


@dataclass(frozen=True, slots=True)
class QueueLength:
    """A queue and how many messages of it are ready; None where a key of it holds another type."""

    queue: str
    ready: int | None


def iterate(client: Client, page: Callable[[str], Plan[Page[T]]]) -> Iterator[T]:
    """Go through all pages."""
    cursor = END
    while True:
        found = client.run(page(cursor))
        yield from found.items
        cursor = found.cursor
        if cursor == END:
            return


async def aiterate(client: AsyncClient, page: Callable[[str], Plan[Page[T]]]) -> AsyncIterator[T]:
    """Go through all pages, from async code."""
    cursor = END
    while True:
        found = await client.run(page(cursor))
        for each in found.items:
            yield each
        cursor = found.cursor
        if cursor == END:
            return


def scan_queues(
    namespace: str, cursor: str, *, count: int, minlen: int = 0, maxlen: int | None = None
) -> Plan[Page[QueueLength]]:
    """Give about `count` (1-1,000) queues of which `minlen` to `maxlen` messages are ready. Two calls."""
    _check(count)
    if not cursor.isdecimal():
        raise _bad_cursor(cursor)
    page: NamesPage = yield names(namespace, cursor, count)
    shards = yield from there(namespace, [name for name in page.names if is_queue(name)])
    places = [
        QueueKeys(namespace, place) for name in sorted(shards) for place in shards[name].names(name)
    ]
    ready: dict[str, int | None] = dict.fromkeys(sorted(shards), 0)
    # A small registry comes as a whole, whatever the count.
    for first in range(0, len(places), _MAX_COUNT // 10):
        keys = places[first : first + _MAX_COUNT // 10]
        numbers: list[int | None] = yield lengths(keys)
        for each, number in zip(keys, numbers, strict=True):
            so_far = ready[each.name]
            ready[each.name] = None if number is None or so_far is None else so_far + number
    found = [QueueLength(name, number) for name, number in ready.items()]
    return Page(page.cursor, [each for each in found if _fits(each.ready, minlen, maxlen)])


def scan_page(
    queue: QueueRef, cursor: str = END, *states: str, count: int = 100
) -> Plan[Page[Stored]]:
    """Read one page of a scan: about `count` messages, and the cursor of the next one, '0' after the last.

    At most 16 calls. Ready messages come newest first.
    """
    _check(count)
    wanted = states or STATES
    shards = yield from queue.every_shard()
    number, _, rest = cursor.rpartition("@")
    if not (number or "0").isdecimal() or int(number or "0") >= len(shards):
        raise _bad_cursor(cursor)
    at = int(number or "0")
    page = yield from _scan(shards[at], rest, wanted, count, cursor)
    if page.cursor != END:
        return Page(f"{at}@{page.cursor}" if at else page.cursor, page.items)
    after = f"{at + 1}@{END}" if at + 1 < len(shards) else END
    return Page(after, page.items)


def _scan(
    queue: QueueRef, cursor: str, wanted: Sequence[str], count: int, given: str
) -> Plan[Page[Stored]]:
    """Read one page of one shard."""
    places = _places(wanted)
    place, _, position = (places[0] if cursor == END else cursor).partition("/")
    if place not in places:
        raise _bad_cursor(given)
    number, found = places.index(place), []
    for _ in range(_CALLS):
        try:
            items, position = yield from _step(queue, place, position, count)
        except ValueError:
            raise _bad_cursor(given) from None
        found += [each for each in items if each.state in wanted]
        if not position:
            number += 1
            if number == len(places):
                return Page(END, found)
            place = places[number]
        if len(found) >= count:
            break
    return Page(f"{place}/{position}", found)


def _places(states: Sequence[str]) -> list[str]:
    for state in states:
        check_state(state)
    places = []
    if "ready" in states:
        places += [*(f"ready-{level}" for level in reversed(range(LEVELS))), "suspect"]
    if "delayed" in states or "held" in states:
        places.append("delayed")
    return places + [state for state in ("unacked", "dead") if state in states]


def _step(queue: QueueRef, place: str, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    """Read a piece of one place; returns it and where to go on, '' at the end."""
    keys = queue.keys
    match place:
        case "delayed":
            return (yield from _delayed(queue, position, count))
        case "unacked":
            return (yield from _unacked(queue, position))
        case "dead":
            found = yield from letters.dead_of(queue, count, after=position or "-")
            after = in_stream(found[-1].entry_id) if len(found) >= count else ""
            return [letter.message for letter in found], after
        case "suspect":
            return (yield from _list(queue, keys.suspect, position, count))
    return (yield from _list(queue, keys.ready[int(place[-1])], position, count))


def _list(queue: QueueRef, key: str, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    # Counted from the tail: what is received at the head meanwhile makes no other message be missed.
    seen = int(position or 0)
    found: list[Stored] = []
    size = PageSize(count)
    while len(found) < count:
        asked = size.limit(count - len(found))
        span = (-seen - asked, -seen - 1)
        items: list[bytes] = yield Command(None, (), ("LRANGE", key, *span), list)
        found += [queue.stored("ready", item) for item in reversed(items)]
        seen += asked
        if len(items) < asked:
            return found, ""
        size.saw(map(len, items))
    return found, str(seen)


def _delayed(queue: QueueRef, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    reply: list[Any] = yield Command(
        None, (), ("ZSCAN", queue.keys.delayed, int(position or 0), "COUNT", count), list
    )
    found = [queue.stored("delayed", item, due_ms) for item, due_ms in looking.scored(reply[1])]
    after = reply[0].decode()
    return found, "" if after == "0" else after


def _unacked(queue: QueueRef, position: str) -> Plan[tuple[list[Stored], str]]:
    # By deadline, for these move away from who goes on: a lease that is extended is met again, none is missed.
    score, _, last = position.partition("~")
    low = int(score) if score else "-inf"
    skipped = 0
    while True:
        words = ("ZRANGE", queue.keys.unacked, low, "+inf", "BYSCORE")
        limit = ("LIMIT", skipped, _LEASES, "WITHSCORES")
        flat: list[bytes] = yield Command(None, (), (*words, *limit), list)
        leases = [
            (deadline_ms, lease.decode("utf-8", "replace"))
            for lease, deadline_ms in looking.scored(flat)
        ]
        fresh = [each for each in leases if not score or each > (int(score), last)]
        if fresh or len(leases) < _LEASES:
            break
        skipped += _LEASES
    found: list[Stored] = []
    for deadline_ms, lease_id in fresh:
        found += yield from looking.lease(queue, lease_id, deadline_ms)
    if len(leases) < _LEASES:
        return found, ""
    return found, f"{fresh[-1][0]}~{fresh[-1][1]}"


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
        f"{ascii(cursor)[:80]} is none of this scan",
        f"begin with {END}, go on with the cursor of the last page and the same states",
    )
