"""Commands that relay what acks send to other queues, see `lua/lib/outbox.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from qworker.engine.arguments import given
from qworker.engine.calls import NUMBERS_PER_MS, End, GroupPart
from qworker.engine.command import Command, Word
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "PAGE",
    "AnyEntry",
    "Notice",
    "OutboxMessage",
    "OutboxPage",
    "Unsent",
    "UnsentPage",
    "accept",
    "destinations",
    "forward",
    "tell",
    "unsent",
]

#: Entries of one page: a call of `accept` stores as many.
PAGE: Final = 100
#: Entries that are looked at in one call.
_LOOKED_AT: Final = 500


class OutboxMessage(msgspec.Struct, frozen=True):
    """A message of an outbox. `delay` and `ttl` in ms, empty for those of its destination."""

    number: int
    priority: int
    delay: bytes
    ttl: bytes
    head: bytes
    tail: bytes

    @property
    def written_ms(self) -> int:
        """When the ack counted that it came of, by the clock of its server."""
        return self.number // NUMBERS_PER_MS

    def at(self, now_ms: int) -> OutboxMessage:
        """Return it at `now_ms` of the same clock, with what is left of its delay and time to live, at least 1."""
        age_ms = now_ms - self.written_ms
        if age_ms <= 0 or not (self.delay or self.ttl):
            return self
        ttl_ms, delay_ms = int(self.ttl or 0), int(self.delay or 0)
        return msgspec.structs.replace(
            self,
            delay=b"%d" % max(0, delay_ms - age_ms) if self.delay else b"",
            ttl=b"%d" % max(1, ttl_ms - age_ms) if ttl_ms else self.ttl,
        )


class Notice(msgspec.Struct, frozen=True):
    """The result of a message of the destination, as `wire/result.py` reads it; empty to forget it."""

    number: int
    message_id: bytes
    keep_ms: int
    words: bytes

    @property
    def written_ms(self) -> int:
        """When that happened, by the clock of its server."""
        return self.number // NUMBERS_PER_MS


AnyEntry = OutboxMessage | Notice | End | GroupPart


class OutboxPage(msgspec.Struct, frozen=True):
    """The next entries for a destination, and how many are left with them. `lane` is empty if there never was one."""

    now_ms: int
    lane: str
    left: int
    entries: tuple[AnyEntry, ...]


class Unsent(msgspec.Struct, frozen=True):
    """An entry that waits in an outbox, by the id of the message, or of the group of calls, that it is to store.

    `entry`: its id in the stream; `message_id`: '' of other entries; `item`: the message as its queue would store it.
    """

    entry: bytes
    message_id: str
    item: bytes

    @property
    def written_ms(self) -> int:
        """When the ack counted that it came of, by the clock of its server."""
        return int(self.entry.partition(b"-")[0]) // NUMBERS_PER_MS


class UnsentPage(msgspec.Struct, frozen=True):
    """Entries of an outbox in their order, and where the next page begins; '' after the last one."""

    entries: tuple[Unsent, ...]
    rest: str


def unsent(
    keys: QueueKeys, destination: str, start: str = "-", end: str = "+", *, count: int = _LOOKED_AT
) -> Command[UnsentPage]:
    """Read up to `count` entries for a destination from `start` to `end`, and leave them there."""

    def decode(reply: Any) -> UnsentPage:
        full = len(reply) == count
        rest = f"({reply[-1][0].decode()}" if full else ""
        return UnsentPage(tuple(_unsent(*entry) for entry in reply), rest)

    key = keys.outbox(destination)
    return raw("XRANGE", key, start, end, "COUNT", count, decode=decode)


def destinations(keys: QueueKeys) -> Command[list[str]]:
    """Name the queues that a queue (or shard) has an outbox for."""
    return raw("HKEYS", keys.out, decode=lambda names: [name.decode() for name in names])


def forward(
    keys: QueueKeys,
    destination: str,
    lane: str = "",
    number: int = 0,
    *,
    count: int = PAGE,
    now_ms: int | None = None,
) -> Command[OutboxPage]:
    """Forget the entries of `lane` up to `number`, which the destination has stored, and read the next ones."""

    def decode(reply: Any) -> OutboxPage:
        _, now, name, left, *entries = accepted(reply, keys.queue)
        return OutboxPage(int(now), name.decode(), left, tuple(_entry(*entry) for entry in entries))

    return Command(
        load_script("forward"),
        (keys.out, keys.outbox(destination), keys.meta),
        (given(now_ms), destination, lane, number, count),
        decode,
    )


def accept(
    keys: QueueKeys, lane: str, entries: Sequence[OutboxMessage], *, now_ms: int | None = None
) -> Command[int]:
    """Store entries of one priority, in order; returns the number of the last one that is stored.

    Those stored before are left out. The reply raises `QueueFullError`, `QueuePausedError` or `BrokenQueueError` if
    the first that is missing cannot be stored; fewer than all are stored if the queue is nearly full.
    """
    priority = entries[0].priority
    args: list[Word] = [given(now_ms), lane, priority, len(entries)]
    for entry in entries:
        args += (entry.number, entry.delay, entry.ttl, entry.head, entry.tail)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue, lane)[2])

    return Command(
        load_script("accept"),
        (
            keys.ready[priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.producers,
            keys.journal,
        ),
        tuple(args),
        decode,
    )


def tell(
    keys: QueueKeys, lane: str, notices: Sequence[Notice], *, now_ms: int | None = None
) -> Command[int]:
    """Store results, in order, and notify readers; returns the number of the last one."""
    args: list[Word] = [given(now_ms), lane, len(notices)]
    for notice in notices:
        args += (notice.number, notice.message_id, notice.keep_ms, notice.words)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue, lane)[2])

    return Command(load_script("tell"), (keys.producers, keys.meta), tuple(args), decode)


def _unsent(entry: bytes, flat: Sequence[bytes]) -> Unsent:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    head = fields.get(b"head", b"")
    named = head.removeprefix(b"q1 ").strip() or fields.get(b"open", b"")
    item = head + b"0 0 0 0 0" + fields.get(b"tail", b"")
    return Unsent(entry, named.decode("utf-8", "replace"), item)


def _entry(number: bytes, flat: Sequence[bytes]) -> AnyEntry:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"join" in fields:
        return End(int(number), fields[b"join"], int(fields[b"member"]), fields[b"words"])
    if b"open" in fields:
        return GroupPart(int(number), fields[b"open"], fields[b"spec"])
    if b"result" in fields:
        return Notice(int(number), fields[b"result"], int(fields[b"keep"]), fields[b"words"])
    return OutboxMessage(
        int(number),
        int(fields[b"priority"]),
        fields[b"delay"],
        fields[b"ttl"],
        fields[b"head"],
        fields[b"tail"],
    )
