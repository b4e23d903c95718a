"""Commands that look at queues and change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qworker.client.commands.arguments import given, maybe, standard_keys
from qworker.client.commands.command import Apart, Command
from qworker.client.commands.replies import accepted
from qworker.client.commands.waiting import NEVER_MS
from qworker.client.options import QueueAttributes
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["Inspection", "existing", "inspect", "lengths", "total"]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A queue at one instant. Times in ms since 1970, None where there is none; the journal's size in bytes.

    `held` of the delayed messages have no due time, see `Queue.hold`. `unread`: shards that could not be read, each
    with the reason; the figures are those of the others.
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
    unread: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the queue has been made or sent to, or holds anything."""
        return bool(
            self.meta or self.stats or self.ready or self.delayed or self.leases or self.dead
        )

    @property
    def attributes(self) -> QueueAttributes:
        """The queue's attributes, at the same instant. Raises `InvalidOptionError` for a wrong one that is stored."""
        return QueueAttributes.of_meta(self.meta)

    @property
    def created_ms(self) -> int | None:
        """When its attributes were first set; None where they never were."""
        return whole(self.meta.get("created_ms"))

    @property
    def modified_ms(self) -> int | None:
        """When its attributes were last set; None where they never were."""
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
        """Messages that a consumer could receive now."""
        return sum(self.ready_by_priority) + self.suspect

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
        return self.meta.get("paused", "")

    @property
    def strict(self) -> bool:
        """Whether a pause of the input also keeps expired leases from coming back."""
        return self.meta.get("pause_strict") == "1"

    @property
    def oldest_age_s(self) -> float:
        """Seconds that the oldest ready message has been ready, its delays not counted; 0 where nothing is ready."""
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
        """Whether the journal is not written now, because the server is nearly full."""
        return self.meta.get("journal_shed") == "1"


def inspect(keys: QueueKeys, *, now_ms: int | None = None) -> Command[Inspection]:
    """Read sizes, ages, counters and attributes at one instant."""

    def decode(reply: Any) -> Inspection:
        answer = accepted(reply, keys.queue)
        _, now, lengths, suspect, delayed, leases, dead, oldest, due, deadline, *more = answer
        _, stats, meta, journal_entries, journal_bytes, held = more
        return Inspection(
            keys.queue,
            int(now),
            tuple(lengths),
            suspect,
            delayed,
            leases,
            dead,
            maybe(oldest),
            None if due and int(due) >= NEVER_MS else maybe(due),
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
        )

    return Command(load_script("inspect"), standard_keys(keys), (given(now_ms),), decode)


def total(shards: Sequence[Inspection]) -> Inspection:
    """Add up the shards of a queue; attributes are those of the first, which all share."""
    first = shards[0]
    stats: Counter[str] = Counter()
    for each in shards:
        stats.update(each.stats)
    levels = zip(*(each.ready_by_priority for each in shards), strict=True)
    return replace(
        first,
        now_ms=max(each.now_ms for each in shards),
        ready_by_priority=tuple(map(sum, levels)),
        suspect=sum(each.suspect for each in shards),
        delayed=sum(each.delayed for each in shards),
        leases=sum(each.leases for each in shards),
        dead=sum(each.dead for each in shards),
        oldest_ready_ms=_first(each.oldest_ready_ms for each in shards),
        next_due_ms=_first(each.next_due_ms for each in shards),
        next_deadline_ms=_first(each.next_deadline_ms for each in shards),
        stats=dict(stats),
        journal_entries=sum(each.journal_entries for each in shards),
        journal_bytes=sum(each.journal_bytes for each in shards),
        held=sum(each.held for each in shards),
    )


def existing(names: Sequence[str]) -> Command[int]:
    """Count those of several keys that exist; in a Cluster those of nodes that serve now."""

    def apart() -> Apart[int]:
        return Apart([existing([name]) for name in names], sum, lambda number, error: 0)

    return Command(None, (), ("EXISTS", *names), int, apart=apart if len(names) > 1 else None)


def lengths(queues: Sequence[QueueKeys]) -> Command[list[int | None]]:
    """Count the ready messages of up to 100 queues; None for one of which a key holds another type."""

    def decode(reply: Any) -> list[int | None]:
        return [None if each < 0 else each for each in accepted(reply, "")[2:]]

    names = tuple(name for keys in queues for name in (*keys.ready, keys.suspect))

    def apart() -> Apart[list[int | None]]:
        return Apart(
            [lengths([keys]) for keys in queues], lambda parts: [part[0] for part in parts]
        )

    return Command(
        load_script("lengths"), names, (), decode, apart=apart if len(queues) > 1 else None
    )


def _first(times: Iterable[int | None]) -> int | None:
    return min((each for each in times if each is not None), default=None)


def _pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    words = [word.decode("utf-8", "replace") for word in flat]
    return list(zip(words[::2], words[1::2], strict=True))
