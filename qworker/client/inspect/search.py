"""Search the messages of a queue by what they hold, from a bounded number that is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from qworker.client.inspect.pages import END, Unread
from qworker.client.inspect.scan import scan_page
from qworker.client.message import Stored
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef

__all__ = ["Searched", "search"]

_PAGE: Final = 500
#: Pages without any message, as of leases that are gone meanwhile, before the search counts them as read.
_EMPTY: Final = 50
_MAX_BYTES: Final = 256 * 2**20


@dataclass(slots=True)
class Searched:
    """Messages that were found, and how many were read; `cursor` continues the search, `END` if it is complete.

    `unread`: what could not be read.
    """

    found: list[Stored] = field(default_factory=list)
    read: int = 0
    cursor: str = END
    unread: list[Unread] = field(default_factory=list)


def search(
    queue: QueueRef,
    fits: Callable[[Stored], bool],
    *states: str,
    most_read: int,
    most_found: int,
    most_bytes: int = _MAX_BYTES,
    cursor: str = END,
) -> Plan[Searched]:
    """Find messages in some states (none given: all) that fit; ends behind a page with the last of `most_found`.

    A page is about 1 MiB, and no other is read behind the one with which they are `most_bytes`.

    Raises `InvalidOptionError` for a cursor of another search.
    """
    result, empty, read_bytes, size = Searched(cursor=cursor), 0, 0, PageSize(_PAGE)
    while True:
        page = yield from scan_page(
            queue, result.cursor, *states, count=size.limit(max(1, most_read - result.read))
        )
        sizes = [len(message.item) for message in page.items]
        size.saw(sizes)
        read_bytes += sum(sizes)
        result.read += len(page.items)
        result.found += [message for message in page.items if fits(message)]
        result.unread += [unread for unread in page.unread if unread not in result.unread]
        result.cursor = page.cursor
        empty = 0 if page.items else empty + 1
        if (
            page.cursor == END
            or result.read >= most_read
            or read_bytes >= most_bytes
            or len(result.found) >= most_found
            or empty == _EMPTY
        ):
            return result
