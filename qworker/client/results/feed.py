"""Read the feed of a message as it grows, until the message has ended."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.inspect.results import result_channels
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.results.searching import Searches, is_gone
from qworker.client.results.wait import Awaited, attempt_s
from qworker.engine.raw import raw
from qworker.errors import ProtectionError, ResultTimeoutError
from qworker.wire.feed import FeedEntry, read_entry

if TYPE_CHECKING:
    from qworker.client.queue import AsyncQueue, Queue

__all__ = ["aread_feed", "read_feed"]

_PAGE: Final = 100
#: Seconds between reads without a hint.
_READ_S: Final = 2.0
#: Seconds until the message is searched for, which costs more.
_SEARCH_S: Final = 5.0


def read_feed(
    queue: Queue, awaited: Awaited, after: str, seconds: float | None
) -> Iterator[FeedEntry]:
    """Yield the entries behind `after` until the message has ended.

    A message without a result has ended once it is not in the queue, if that is short enough to be searched. Raises
    `ResultTimeoutError` if nothing comes for `seconds` (None: forever) before, and `ServerError` as a wait does.
    """
    reading = _Reading(queue.ref, awaited, after, seconds)
    with queue.client.listener.watch(reading.channels) as watch:
        while not reading.over:
            entries = queue.client.run(reading.page(), give_up_s=attempt_s(queue, reading.end))
            yield from entries
            if not entries and (pause_s := reading.pause()):
                watch.wait(pause_s)


async def aread_feed(
    queue: AsyncQueue, awaited: Awaited, after: str, seconds: float | None
) -> AsyncIterator[FeedEntry]:
    """Yield entries as `read_feed` does."""
    reading = _Reading(queue.ref, awaited, after, seconds)
    async with queue.client.listener.watch(reading.channels) as watch:
        while not reading.over:
            page = reading.page()
            entries = await queue.client.run(page, give_up_s=attempt_s(queue, reading.end))
            for entry in entries:
                yield entry
            if not entries and (pause_s := reading.pause()):
                await watch.wait(pause_s)


class _Reading:
    """A reader's position, without I/O."""

    def __init__(
        self,
        queue: QueueRef,
        awaited: Awaited,
        after: str,
        seconds: float | None,
    ) -> None:
        self._queue, self._after = queue, after
        self._id, self._queues = awaited.message_id, awaited.queues
        self._seconds = seconds
        self._limit_s = math.inf if seconds is None else seconds
        #: When it ends if nothing comes, by the monotonic clock.
        self.end = time.monotonic() + self._limit_s
        self._ended = False
        self._searches = Searches(_SEARCH_S)
        #: The message has ended, and all of its feed is read.
        self.over = False
        shards = [queue.shard(number) for number in range(queue.shards.kept)]
        feeds = [shard.keys.feed(self._id) for shard in shards]
        self.channels = [*feeds, *result_channels(queue, self._id)]

    def page(self) -> Plan[list[FeedEntry]]:
        """Read the next entries; without any, check whether the message has ended."""
        entries: list[FeedEntry] = []
        names = self._queue.namespace, self._queue.keys.name, self._id
        low = f"({self._after}" if self._after else "-"
        for shard in (yield from self._queue.every_shard()):
            words = ("XRANGE", shard.keys.feed(self._id), low, "+", "COUNT", _PAGE)
            found: list[Any] = yield raw(*words, decode=list)
            entries += [read_entry(entry, self._queue.keyring, *names) for entry in found]
        if entries:
            # If another shard took the message over, both shards have entries.
            entries.sort(key=_position)
            self._after = entries[-1].id
            self.end = time.monotonic() + self._limit_s
        elif self._ended:
            self.over = True
        else:
            self._ended = yield from _has_ended(self._queue, self._id)
            if not self._ended and self._searches.due():
                self._ended = yield from is_gone(self._queue, self._id, self._queues)
        return entries

    def pause(self) -> float:
        """For how many seconds to wait for a hint. Raises `ResultTimeoutError`."""
        if self.over or self._ended:
            return 0.0  # entries that were appended before the end can be read
        if self._seconds is None:
            return _READ_S
        left_s = self.end - time.monotonic()
        if left_s <= 0:
            raise ResultTimeoutError(self._queue.keys.name, self._id, self._seconds)
        return min(left_s, _READ_S)


def _position(entry: FeedEntry) -> tuple[int, int]:
    ms, _, number = entry.id.partition("-")
    return int(ms), int(number)


def _has_ended(queue: QueueRef, message_id: str) -> Plan[bool]:
    try:
        return (yield from outcome_of(queue, message_id)) is not None
    except ProtectionError:
        return True  # with a result that we cannot read
