"""Find waiting messages by their ids, in one walk through each key."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from qworker.chunks import chunks
from qworker.client.inspect.walk import ListWalk, SortedSetWalk
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.message import ANYWHERE, MAX_PICKED, location
from qworker.wire.numbers import score_ms

__all__ = ["Search", "WaitingMessage", "call_pages", "find_delayed", "id_of", "scored"]

_PAGE: Final = 500
#: What one call moves or deletes, at most.
_BYTES_PER_CALL: Final = 2**20


class WaitingMessage(msgspec.Struct, frozen=True):
    """A waiting message as stored, the `location` where it was read, and the due time of a delayed one."""

    id: str
    item: bytes
    location: str = ANYWHERE
    due_ms: int | None = None


class Search:
    """A search of the ready messages, from the tail of each list, until all of some ids are found."""

    def __init__(self, queue: QueueRef, ids: Iterable[str]) -> None:
        self._wanted = _by_bytes(ids)
        lists = [*enumerate(queue.keys.ready), (None, queue.keys.suspect)]
        self._walks = deque((level, ListWalk(key, _PAGE)) for level, key in lists)

    @property
    def ended(self) -> bool:
        """Whether all are found, or all lists are read."""
        return not self._wanted or not self._walks

    def page(self) -> Plan[list[WaitingMessage]]:
        """Read the next page; returns the wanted messages in it, in the order of the list."""
        level, walk = self._walks[0]
        behind = walk.behind
        items = yield from walk.page()
        hits = [
            WaitingMessage(message_id, item, location(level, behind + at))
            for at, item in enumerate(items)
            if (message_id := self._wanted.pop(id_of(item), None)) is not None
        ]
        if walk.ended:
            self._walks.popleft()
        return hits[::-1]

    def skip(self) -> None:
        """Leave the list that the last page could not read."""
        self._walks.popleft()

    def took(self, number: int) -> None:
        """Note how many messages of the last page were removed."""
        if self._walks:
            self._walks[0][1].took(number)


def find_delayed(queue: QueueRef, ids: Iterable[str]) -> Plan[list[WaitingMessage]]:
    """Search the delayed and held messages until all of some ids are found."""
    wanted = _by_bytes(ids)
    walk = SortedSetWalk(queue.keys.delayed, _PAGE)
    hits: list[WaitingMessage] = []
    while wanted and not walk.ended:
        for item, score in (yield from walk.page()):
            if (message_id := wanted.pop(id_of(item), None)) is not None:
                hits.append(WaitingMessage(message_id, item, due_ms=score_ms(score)))
    return hits


def scored(flat: list[bytes]) -> Iterator[tuple[bytes, int]]:
    """Pair the members of a sorted set, as replied, with their times in ms."""
    for member, score in zip(flat[::2], flat[1::2], strict=True):
        yield member, score_ms(score)


def _by_bytes(ids: Iterable[str]) -> dict[bytes, str]:
    # Items that are not messages have no id, and match the empty one.
    return {message_id.encode(): message_id for message_id in ids if message_id}


def id_of(item: bytes) -> bytes:
    """Cut the id out of an item; b'' if the item is not a message."""
    return item[3 : item.find(b" ", 3)] if item.startswith(b"q1 ") else b""


def call_pages(hits: Sequence[WaitingMessage]) -> Iterator[list[WaitingMessage]]:
    """Divide messages into those of one call each, which keeps the server for a few ms: by number and by bytes."""
    return chunks(hits, lambda hit: len(hit.item), most_bytes=_BYTES_PER_CALL, most=MAX_PICKED)
