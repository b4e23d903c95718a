"""Walk through one key of a queue in pages of about 1 MiB while others use it.

An item that stays in its key during the whole walk is read once. An item that comes, goes or moves during the walk may
be missed, or read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.engine.raw import raw

__all__ = ["Entry", "ListWalk", "Member", "SortedSetWalk", "StreamWalk", "Walk"]

T = TypeVar("T")

#: A member of a sorted set, and its score as the server writes it.
Member = tuple[bytes, bytes]
#: The id of a stream's entry, and its fields and values in turn.
Entry = tuple[bytes, list[bytes]]

_PAGE: Final = 1000


class Walk(ABC, Generic[T]):
    """One walk; pages hold at most `most` items."""

    def __init__(self, key: str, most: int = _PAGE) -> None:
        self.key = key
        self.ended = False
        self._size = PageSize(most)

    @abstractmethod
    def page(self) -> Plan[list[T]]:
        """Read the next page, which may be empty before the end. One call."""

    def pages(self, run: Callable[[Plan[list[T]]], list[T]]) -> Iterator[list[T]]:
        """Yield all pages that are not empty; `run` executes a plan."""
        while not self.ended:
            if page := run(self.page()):
                yield page


class ListWalk(Walk[bytes]):
    """Walks through a list from its tail: receives take from the head, so they make it miss no other item."""

    def __init__(self, key: str, most: int = _PAGE, *, behind: int = 0) -> None:
        super().__init__(key, most)
        #: Items between the next page and the tail.
        self.behind = behind

    def page(self, limit: int = _PAGE) -> Plan[list[bytes]]:
        """Read the next page of at most `limit` items, the nearest to the tail first."""
        asked = self._size.limit(limit)
        span = (-self.behind - asked, -self.behind - 1)
        items: list[bytes] = yield raw("LRANGE", self.key, *span, decode=list)
        items.reverse()
        self.behind += asked
        self.ended = len(items) < asked
        self._size.saw(map(len, items))
        return items

    def took(self, number: int = 1) -> None:
        """Note that items which were read are gone: those before them have moved towards the tail."""
        self.behind = max(0, self.behind - number)


class SortedSetWalk(Walk[Member]):
    """Walks through a sorted set by score. A member whose score grows during the walk is read again.

    Not by ZSCAN: its cursors are invalid on another server, to which the slot may move. Each page begins with
    the last member of the page before.
    """

    def __init__(self, key: str, most: int = _PAGE, *, low: str = "-inf") -> None:
        super().__init__(key, most)
        self._low, self._skip = low, 0
        self._last: tuple[float, bytes] | None = None

    def page(self) -> Plan[list[Member]]:
        """Read the next page, the lowest scores first."""
        asked = self._size.number + (self._last is not None)
        words = ("ZRANGE", self.key, self._low, "+inf", "BYSCORE")
        limit = ("LIMIT", self._skip, asked, "WITHSCORES")
        flat: list[bytes] = yield raw(*words, *limit, decode=list)
        members, scores = flat[::2], flat[1::2]
        order = [*zip(map(float, scores), members, strict=True)]
        if self._skip and not (order and self._is_read(order[0])):
            # Members of this score are gone: read some of them again.
            self._skip = max(0, self._skip - asked // 2)
            return []
        fresh = [
            (member, score)
            for at, member, score in zip(order, members, scores, strict=True)
            if not self._is_read(at)
        ]
        self.ended = len(members) < asked
        if members:
            self._last = order[-1] if self._last is None else max(self._last, order[-1])
            before = self._skip if scores[0] == scores[-1] else 0
            self._low, self._skip = scores[-1].decode(), before + scores.count(scores[-1]) - 1
        self._size.saw(map(len, members))
        return fresh

    def _is_read(self, at: tuple[float, bytes]) -> bool:
        return self._last is not None and at <= self._last


class StreamWalk(Walk[Entry]):
    """Walks through a stream from its oldest entry."""

    def __init__(self, key: str, most: int = _PAGE) -> None:
        super().__init__(key, most)
        self._start = "-"

    def page(self) -> Plan[list[Entry]]:
        """Read the next page."""
        asked = self._size.number
        words = ("XRANGE", self.key, self._start, "+", "COUNT", asked)
        reply: list[Any] = yield raw(*words, decode=list)
        self.ended = len(reply) < asked
        if reply:
            self._start = f"({reply[-1][0].decode()}"
        self._size.saw(sum(map(len, fields)) for _, fields in reply)
        return [(entry_id, fields) for entry_id, fields in reply]
