"""Moves messages into our queue: copies them, then removes the originals. Whenever it is interrupted, nothing is lost
and nothing is moved twice.

Each page takes three steps, and each step may be repeated:

1. read it from the source;
2. store it in our queue, with the mark of each message in the queue's ledger `imported`: one script, so that a message
   is stored if and only if its mark is (`lua/send/take_over.lua`);
3. remove the originals; their marks are no longer needed, and step 2 of the next page deletes them.

Interrupted before 2, nothing has happened. Between 2 and 3 the originals still exist: the next run finds their marks,
stores nothing, and removes them. After 3 only marks are left, of messages that no longer exist in the source.

Two runs at once: the later one begins by writing its token into the ledger, and from then on the script refuses the
earlier one, which may still hold an older page.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.chunks import chunks
from qworker.client.execute.sync import Client
from qworker.client.queue_ref import QueueRef
from qworker.engine.take_over import NewArrival, begin_import, take_over
from qworker.importers.source import SourceKey, SourceMessage, SourceQueue
from qworker.importers.survey import PAGE
from qworker.wire.envelope import tail

__all__ = ["ImportSupersededError", "MoveCounts", "Mover"]

#: Bytes that one call stores at most, unless a single message is larger: a call blocks the server.
_CALL_BYTES: Final = 4 * 2**20


class ImportSupersededError(Exception):
    """Another import into the same queue has begun; this one stopped and lost nothing."""


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """Numbers of messages: `stored` now, `known` (stored by an interrupted run), `refused`, and `vanished` from the
    source between reading and removing, because a consumer there has taken them as well.
    """

    stored: int = 0
    known: int = 0
    vanished: int = 0
    refused: int = 0

    def __add__(self, other: MoveCounts) -> MoveCounts:
        return MoveCounts(
            self.stored + other.stored,
            self.known + other.known,
            self.vanished + other.vanished,
            self.refused + other.refused,
        )


class Mover:
    """Moves messages into one of our queues."""

    def __init__(self, client: Client, queue: QueueRef) -> None:
        self._client = client
        self._ref = queue
        self._keys = queue.keys
        self._run = secrets.token_hex(12)
        #: Marks of messages that no longer exist in the source.
        self._gone: list[str] = []

    def move(
        self, queue: SourceQueue, on_progress: Callable[[MoveCounts], None] = lambda _: None
    ) -> MoveCounts:
        """Move the messages that a queue holds now; `on_progress` gets the numbers of each page.

        Raises `QueueFullError`, `QueuePausedError`, `BrokenQueueError`, `ServerError`, `ImportSupersededError`, and
        errors of redis-py from the other server. After any of them, as after an interruption, call it again to
        continue.
        """
        self._client.run(self._ref.announce())
        self._client.execute(begin_import(self._keys, self._run))
        total = MoveCounts()
        for key in queue.keys:
            for page in self._pages(key):
                on_progress(page)
                total += page
        self._take([], 0)
        return total

    def _pages(self, key: SourceKey) -> Iterator[MoveCounts]:
        left, refused = key.size(), 0
        while left > 0:
            messages = key.read(refused, min(PAGE, left))
            if not messages:
                return
            left -= len(messages)
            movable = [message for message in messages if message.content is not None]
            moved = MoveCounts(refused=len(messages) - len(movable))
            for chunk in chunks(movable, _size, most_bytes=_CALL_BYTES):
                moved += self._move_chunk(key, chunk)
            refused += moved.refused
            yield moved

    def _move_chunk(self, key: SourceKey, chunk: Sequence[SourceMessage]) -> MoveCounts:
        stored, known = self._take(chunk, key.priority)
        vanished = len(chunk) - key.remove_originals(chunk)
        self._gone = [message.mark for message in chunk]
        return MoveCounts(stored, known, vanished)

    def _take(self, chunk: Sequence[SourceMessage], priority: int) -> tuple[int, int]:
        arrivals = [self._arrival(message, priority) for message in chunk]
        taken = self._client.execute(
            take_over(self._keys, self._run, arrivals, self._gone, priority=priority)
        )
        if taken.superseded:
            raise ImportSupersededError
        self._gone = []
        return taken.stored, taken.known

    def _arrival(self, message: SourceMessage, priority: int) -> NewArrival:
        content = message.content
        assert content is not None
        flags = {"p": str(priority)} if priority else {}
        if content.max_receives is not None:
            flags["m"] = str(content.max_receives)
        if content.first_received_ms is not None:
            flags["f"] = str(content.first_received_ms)
        message_id, body = self._ref.ids.message_id(), content.body
        if self._ref.protected:
            body = self._ref.protect(message_id, body, flags)
        return NewArrival(
            mark=message.mark,
            id=message_id,
            tail=tail(body, flags),
            delay_ms=content.delay_ms,
            ttl_ms=content.ttl_ms,
            age_ms=content.age_ms,
            receives=content.receives,
        )


def _size(message: SourceMessage) -> int:
    assert message.content is not None
    return len(message.content.body)
