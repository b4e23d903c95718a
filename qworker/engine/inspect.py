"""Commands that inspect queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from qworker.engine.arguments import given, maybe, standard_keys
from qworker.engine.command import Command, PerQueue
from qworker.engine.message import SEATS_FROM
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["Inspection", "existing", "inspect", "lengths", "total"]


#: How the attribute `paused` begins while a queue is rate limited.
_LIMITED: Final = "until "


class Inspection(msgspec.Struct, frozen=True):
    """A queue at one instant. Times in ms since 1970, None if there is none; the journal's size in bytes.

    `held`: how many of the delayed messages have no due time, see `Queue.hold`. `grouped`: messages that wait in
    groups, which are ready as well. `unread`: shards that could not be read, each with the reason; the figures cover
    the others, and no shards that were given up, whose journals stay.
    """

    queue: str
    now_ms: int
    ready_by_priority: tuple[int, ...]
    suspect: int
    delayed: int
    leases: int
    dead: int
    oldest_ready_ms: int | None
    next_due_ms: int | None
    next_deadline_ms: int | None
    stats: dict[str, int]
    meta: dict[str, str]
    journal_entries: int = 0
    journal_bytes: int = 0
    held: int = 0
    grouped: int = 0
    unread: tuple[str, ...] = ()

    @property
    def overdue_s(self) -> float:
        """Seconds by which the first due message or visibility deadline is late; 0 if none is."""
        times = (self.next_due_ms, self.next_deadline_ms)
        return (
            max(0, *(self.now_ms - time_ms for time_ms in times if time_ms is not None), 0) / 1000
        )

    @property
    def is_full(self) -> bool:
        """Whether the queue is at its maxlen and refuses sends."""
        maxlen = whole(self.meta.get("maxlen")) or 0
        return 0 < maxlen <= self.stored

    @property
    def exists(self) -> bool:
        """Whether the queue was created or sent to, or holds anything."""
        return bool(
            self.meta or self.stats or self.ready or self.delayed or self.leases or self.dead
        )

    @property
    def attributes(self) -> QueueAttributes:
        """The queue's attributes at the same instant. Raises `InvalidOptionError` if a stored one is invalid."""
        return QueueAttributes.of_meta(self.meta)

    @property
    def created_ms(self) -> int | None:
        """When its attributes were first set; None if never."""
        return whole(self.meta.get("created_ms"))

    @property
    def modified_ms(self) -> int | None:
        """When its attributes were last set; None if never."""
        return whole(self.meta.get("modified_ms"))

    @property
    def sent_total(self) -> int:
        """Messages ever sent."""
        return self.stats.get("sent", 0)

    @property
    def received_total(self) -> int:
        """Deliveries ever made."""
        return self.stats.get("received", 0)

    @property
    def ready(self) -> int:
        """Messages that a consumer could receive now, or that wait in groups for their turn, a slot or a rate."""
        return sum(self.ready_by_priority) + self.suspect + self.grouped

    @property
    def unacked(self) -> int:
        """Messages received and not settled."""
        return max(0, self.stats.get("unacked", 0))

    @property
    def stored(self) -> int:
        """Messages that count against maxlen."""
        return self.ready + self.delayed + self.unacked

    @property
    def paused(self) -> str:
        """'' (not), 'in', 'out' or 'all'."""
        mode = self.meta.get("paused", "")
        return "" if mode.startswith(_LIMITED) else mode

    @property
    def limited_until_ms(self) -> int | None:
        """Until when no message is delivered, because a handler raised `RateLimited`; None if none has."""
        mode = self.meta.get("paused", "")
        until_ms = whole(mode.removeprefix(_LIMITED)) if mode.startswith(_LIMITED) else None
        return until_ms if until_ms is not None and until_ms > self.now_ms else None

    @property
    def strict(self) -> bool:
        """Whether messages of expired leases stay away while input is paused."""
        return self.meta.get("pause_strict") == "1"

    @property
    def oldest_age_s(self) -> float:
        """Seconds since the oldest ready message became ready; 0 if none is."""
        if self.oldest_ready_ms is None:
            return 0.0
        return max(0, self.now_ms - self.oldest_ready_ms) / 1000

    @property
    def journal(self) -> str:
        """'off', 'outcomes' or 'all'."""
        mode = self.meta.get("journal", "")
        return mode if mode in ("outcomes", "all") else "off"

    @property
    def journal_shed(self) -> bool:
        """Whether the journal is off for now because the server is nearly full."""
        return self.meta.get("journal_shed") == "1"


def inspect(keys: QueueKeys, *, now_ms: int | None = None) -> Command[Inspection]:
    """Read sizes, ages, counters and attributes at one instant."""

    def decode(reply: Any) -> Inspection:
        fields = accepted(reply, keys.queue)
        _, now, lengths, suspect, delayed, leases, dead, oldest, due, deadline, *more = fields
        _, stats, meta, journal_entries, journal_bytes, held, grouped = more
        return Inspection(
            keys.queue,
            int(now),
            tuple(lengths),
            suspect,
            delayed - grouped,
            leases,
            dead,
            maybe(oldest),
            None if due and int(due) >= SEATS_FROM else maybe(due),
            maybe(deadline),
            {
                name: -number if value.startswith("-") else number
                for name, value in _pairs(stats)
                if (number := whole(value.removeprefix("-"))) is not None
            },
            dict(_pairs(meta)),
            journal_entries,
            int(journal_bytes),
            held,
            grouped=grouped,
        )

    return Command(load_script("inspect"), standard_keys(keys), (given(now_ms),), decode)


def total(shards: Sequence[Inspection]) -> Inspection:
    """Add up the shards of a queue; all share the attributes of the first."""
    first = shards[0]
    stats: Counter[str] = Counter()
    for shard in shards:
        stats.update(shard.stats)
    levels = zip(*(shard.ready_by_priority for shard in shards), strict=True)
    return replace(
        first,
        now_ms=max(shard.now_ms for shard in shards),
        ready_by_priority=tuple(map(sum, levels)),
        suspect=sum(shard.suspect for shard in shards),
        delayed=sum(shard.delayed for shard in shards),
        leases=sum(shard.leases for shard in shards),
        dead=sum(shard.dead for shard in shards),
        oldest_ready_ms=_first(shard.oldest_ready_ms for shard in shards),
        next_due_ms=_first(shard.next_due_ms for shard in shards),
        next_deadline_ms=_first(shard.next_deadline_ms for shard in shards),
        stats=dict(stats),
        journal_entries=sum(shard.journal_entries for shard in shards),
        journal_bytes=sum(shard.journal_bytes for shard in shards),
        held=sum(shard.held for shard in shards),
        grouped=sum(shard.grouped for shard in shards),
    )


def existing(names: Sequence[str], *, all_serve: bool = False) -> Command[int]:
    """Count how many of several keys exist; in a Cluster on the nodes that serve now; with `all_serve` all must."""

    def per_queue() -> PerQueue[int]:
        each = [existing([name]) for name in names]
        return PerQueue(each, sum, None if all_serve else lambda index, error: 0)

    return raw("EXISTS", *names, decode=int, per_queue=per_queue if len(names) > 1 else None)


def lengths(queues: Sequence[QueueKeys]) -> Command[list[int | None]]:
    """Count the ready messages of up to 100 queues; None for a queue with a key of another type."""

    def decode(reply: Any) -> list[int | None]:
        return [None if length < 0 else length for length in accepted(reply, "")[2:]]

    names = tuple(name for keys in queues for name in (*keys.ready, keys.suspect))

    def per_queue() -> PerQueue[list[int | None]]:
        return PerQueue(
            [lengths([keys]) for keys in queues], lambda parts: [part[0] for part in parts]
        )

    return Command(
        load_script("lengths"), names, (), decode, per_queue=per_queue if len(queues) > 1 else None
    )


def _first(times: Iterable[int | None]) -> int | None:
    return min((time_ms for time_ms in times if time_ms is not None), default=None)


def _pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    words = [word.decode("utf-8", "replace") for word in flat]
    return list(zip(words[::2], words[1::2], strict=True))
