"""Going through queues and messages in pages: bounded steps, each with the cursor of the next one.

What is there all the time is seen at least once. What moves meanwhile may be seen twice; what comes or goes, or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qworker.client.commands.command import Command
from qworker.client.commands.upkeep import lengths
from qworker.client.message import Stored
from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.wire.keys import LEVELS, QueueKeys, queues_key
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.client.aio import AsyncClient
    from qworker.client.operations import Operations, Plan
    from qworker.client.sync import Client

__all__ = [
    "END",
    "STATES",
    "Page",
    "QueueLength",
    "aiterate",
    "iterate",
    "scan_messages",
    "scan_queues",
]

T = TypeVar("T")

#: The cursor of the first page, and what stands for it behind the last one.
END: Final = "0"
STATES: Final = ("ready", "delayed", "held", "unacked", "dead")
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
    reply: list[Any] = yield Command(
        None, (), ("HSCAN", queues_key(namespace), cursor, "COUNT", count), list
    )
    names = sorted({name for name in map(_queue_name, reply[1][::2]) if name})
    found: list[QueueLength] = []
    # A small registry comes as a whole, whatever the count.
    for first in range(0, len(names), _MAX_COUNT // 10):
        keys = [QueueKeys(namespace, name) for name in names[first : first + _MAX_COUNT // 10]]
        numbers: list[int | None] = yield lengths(keys)
        found += [QueueLength(each.queue, n) for each, n in zip(keys, numbers, strict=True)]
    return Page(reply[0].decode(), [each for each in found if _fits(each.ready, minlen, maxlen)])


def scan_messages(
    operations: Operations, cursor: str, states: Sequence[str], *, count: int
) -> Plan[Page[Stored]]:
    """Give about `count` (1-1,000) messages of a queue in some states, of ready the newest first. At most 16 calls."""
    _check(count)
    places = _places(states)
    place, _, position = (places[0] if cursor == END else cursor).partition("/")
    if place not in places:
        raise _bad_cursor(cursor)
    number, found = places.index(place), []
    for _ in range(_CALLS):
        try:
            items, position = yield from _step(operations, place, position, count)
        except ValueError:
            raise _bad_cursor(cursor) from None
        found += [each for each in items if each.state in states]
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
        if state not in STATES:
            raise InvalidOptionError(
                "state", f"{ascii(state)[:80]} is no state", f"one of {', '.join(STATES)}"
            )
    places = []
    if "ready" in states:
        places += [*(f"ready-{level}" for level in reversed(range(LEVELS))), "suspect"]
    if "delayed" in states or "held" in states:
        places.append("delayed")
    places += [state for state in ("unacked", "dead") if state in states]
    if not places:
        raise InvalidOptionError("state", "none is given", f"one of {', '.join(STATES)}")
    return places


def _step(
    operations: Operations, place: str, position: str, count: int
) -> Plan[tuple[list[Stored], str]]:
    """Read a piece of one place; returns it and where to go on, '' at the end."""
    keys = operations.keys
    match place:
        case "delayed":
            return (yield from _delayed(keys, position, count))
        case "unacked":
            return (yield from _unacked(operations, position))
        case "dead":
            letters = yield from operations.dead(count, after=position or "-")
            after = letters[-1].entry_id if len(letters) >= count else ""
            return [letter.message for letter in letters], after
        case "suspect":
            return (yield from _list(keys, keys.suspect, position, count))
    return (yield from _list(keys, keys.ready[int(place[-1])], position, count))


def _list(keys: QueueKeys, key: str, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    # Counted from the tail: what is received at the head meanwhile makes no other message be missed.
    seen = int(position or 0)
    items: list[bytes] = yield Command(None, (), ("LRANGE", key, -seen - count, -seen - 1), list)
    found = [Stored.of(keys.queue, "ready", item) for item in reversed(items)]
    return found, str(seen + count) if len(items) == count else ""


def _delayed(keys: QueueKeys, position: str, count: int) -> Plan[tuple[list[Stored], str]]:
    reply: list[Any] = yield Command(
        None, (), ("ZSCAN", keys.delayed, int(position or 0), "COUNT", count), list
    )
    flat = reply[1]
    found = [
        Stored.of(keys.queue, "delayed", item, int(float(score)))
        for item, score in zip(flat[::2], flat[1::2], strict=True)
    ]
    after = reply[0].decode()
    return found, "" if after == "0" else after


def _unacked(operations: Operations, position: str) -> Plan[tuple[list[Stored], str]]:
    # By deadline, for these move away from who goes on: a lease that is extended is met again, none is missed.
    score, _, last = position.partition("~")
    low = int(score) if score else "-inf"
    skipped = 0
    while True:
        words = ("ZRANGE", operations.keys.unacked, low, "+inf", "BYSCORE")
        limit = ("LIMIT", skipped, _LEASES, "WITHSCORES")
        flat: list[bytes] = yield Command(None, (), (*words, *limit), list)
        leases = [
            (int(float(deadline)), lease.decode("utf-8", "replace"))
            for lease, deadline in zip(flat[::2], flat[1::2], strict=True)
        ]
        fresh = [each for each in leases if not score or each > (int(score), last)]
        if fresh or len(leases) < _LEASES:
            break
        skipped += _LEASES
    found: list[Stored] = []
    for deadline_ms, lease_id in fresh:
        found += yield from operations.lease(lease_id, deadline_ms)
    if len(leases) < _LEASES:
        return found, ""
    return found, f"{fresh[-1][0]}~{fresh[-1][1]}"


def _fits(length: int | None, minlen: int, maxlen: int | None) -> bool:
    if length is None:
        return minlen == 0 and maxlen is None
    return length >= minlen and (maxlen is None or length <= maxlen)


def _queue_name(field: bytes) -> str:
    try:
        return check_queue(field.decode("utf-8", "replace"))
    except InvalidNameError:
        return ""


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
