"""Moving: copy what waits in a place into our queue, then let go of it there; whatever interrupts it, nothing is lost
and nothing is moved twice.

Each page takes three steps, and each step may be repeated:

1. read it from the place;
2. store it in ours, with the mark of each message in the ledger `imported` of our queue: one script, so that a
   message is stored if and only if its mark is (`lua/take_over.lua`);
3. let go of the originals; then the marks are no longer needed, and the next page's step 2 forgets them.

Interrupted before 2, nothing has happened. Between 2 and 3 the originals are still there: the next run finds their
marks, stores nothing, and lets go of them. After 3 only marks of messages are left that nobody will see again.

Two runs at once: the later one begins by writing its token into the ledger, and from then on the script refuses the
earlier one, which could hold a page from before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.client.commands.taking_over import NewArrival, begin_import, take_over
from qworker.client.queue_ref import QueueRef
from qworker.client.sync import Client
from qworker.moving.survey import PAGE
from qworker.moving.waiting import Found, Place, SourceQueue
from qworker.wire.envelope import tail

__all__ = ["ImportSupersededError", "Moved", "Mover"]

#: A call stores at most so many bytes, but for a single larger message: it blocks the server.
_CALL_BYTES: Final = 4 * 2**20


class ImportSupersededError(Exception):
    """Another import into the same queue has begun; this one stopped, and has lost nothing."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved: messages `stored` now, those `known` that an interrupted run had stored already, those `vanished`
    from the other system between reading and letting go (a consumer there has them as well), and those `refused`.
    """

    stored: int = 0
    known: int = 0
    vanished: int = 0
    refused: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
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
        #: Marks of messages that are no longer in their own system.
        self._gone: list[str] = []

    def move(self, queue: SourceQueue, told: Callable[[Moved], None] = lambda _: None) -> Moved:
        """Move what waits in a queue now; `told` is given what each page came to.

        Raises `QueueFullError`, `QueuePausedError`, `BrokenQueueError`, `ServerError`, `ImportSupersededError`, and
        errors of redis-py from the other server. All of them, like an interruption, leave a state from which another
        run goes on.
        """
        self._client.run(self._ref.announce())
        self._client.execute(begin_import(self._keys, self._run))
        total = Moved()
        for place in queue.places:
            for page in self._pages(place):
                told(page)
                total += page
        self._take([], 0)
        return total

    def _pages(self, place: Place) -> Iterator[Moved]:
        left, refused = place.size(), 0
        while left > 0:
            entries = place.read(refused, min(PAGE, left))
            if not entries:
                return
            left -= len(entries)
            movable = [each for each in entries if each.content is not None]
            moved = Moved(refused=len(entries) - len(movable))
            for chunk in _chunks(movable):
                moved += self._move_chunk(place, chunk)
            refused += moved.refused
            yield moved

    def _move_chunk(self, place: Place, chunk: Sequence[Found]) -> Moved:
        stored, known = self._take(chunk, place.priority)
        vanished = len(chunk) - place.let_go(chunk)
        self._gone = [each.mark for each in chunk]
        return Moved(stored, known, vanished)

    def _take(self, chunk: Sequence[Found], priority: int) -> tuple[int, int]:
        arrivals = [self._arrival(each, priority) for each in chunk]
        taken = self._client.execute(
            take_over(self._keys, self._run, arrivals, self._gone, priority=priority)
        )
        if taken.superseded:
            raise ImportSupersededError
        self._gone = []
        return taken.stored, taken.known

    def _arrival(self, found: Found, priority: int) -> NewArrival:
        content = found.content
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
            mark=found.mark,
            id=message_id,
            tail=tail(body, flags),
            delay_ms=content.delay_ms,
            ttl_ms=content.ttl_ms,
            age_ms=content.age_ms,
            receives=content.receives,
        )


def _chunks(entries: Sequence[Found]) -> Iterator[list[Found]]:
    chunk: list[Found] = []
    size = 0
    for each in entries:
        assert each.content is not None
        if chunk and size + len(each.content.body) > _CALL_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += len(each.content.body)
    if chunk:
        yield chunk
