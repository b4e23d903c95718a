"""The pages of a scan, each with the cursor of the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from qworker.client.plan import Plan
from qworker.errors import InvalidOptionError
from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.client.execute.aio import AsyncClient
    from qworker.client.execute.sync import Client

__all__ = ["END", "MAX_COUNT", "Page", "Unread", "aiterate", "bad_cursor", "check_page", "iterate"]

T = TypeVar("T")

_log = logger(__name__)

#: The cursor of the first page, and the one after the last page.
END: Final = "0"
MAX_COUNT: Final = 1000


class Unread(msgspec.Struct, frozen=True):
    """A queue or shard that a scan has not read whole, and why: a key of another type, or a node that is away."""

    queue: str
    problem: str

    def __str__(self) -> str:
        return f"{self.queue}: {self.problem}"


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a scan, possibly empty; `cursor` is that of the next page, `END` after the last.

    `unread`: what the scan has passed over here.
    """

    cursor: str
    items: list[T]
    unread: tuple[Unread, ...] = ()


def iterate(client: Client, page: Callable[[str], Plan[Page[T]]]) -> Iterator[T]:
    """Iterate over the items of all pages."""
    cursor = END
    while True:
        read = client.run(page(cursor))
        yield from _noted(read)
        cursor = read.cursor
        if cursor == END:
            return


async def aiterate(client: AsyncClient, page: Callable[[str], Plan[Page[T]]]) -> AsyncIterator[T]:
    """Iterate over the items of all pages, in async code."""
    cursor = END
    while True:
        read = await client.run(page(cursor))
        for item in _noted(read):
            yield item
        cursor = read.cursor
        if cursor == END:
            return


def _noted(page: Page[T]) -> list[T]:
    """Return the items of a page; what it has passed over is logged."""
    for unread in page.unread:
        _log.warning("shard_unread", queue=unread.queue, error=unread.problem)
    return page.items


def check_page(count: int) -> None:
    """Raise `InvalidOptionError` for a size of pages out of range."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        raise InvalidOptionError(
            "count", f"{ascii(count)[:80]} is out of range", f"a number from 1 to {MAX_COUNT}"
        )


def bad_cursor(cursor: str) -> InvalidOptionError:
    """Make the error for text that is not a cursor of a scan."""
    return InvalidOptionError(
        "cursor",
        f"{ascii(cursor)[:80]} is not a cursor of this scan",
        f"start with {END}, continue with the cursor of the last page and the same states",
    )
