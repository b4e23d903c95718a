"""Commands of the reaper and of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands.command import Command, Word
from qworker.client.commands.receiving import standard_keys
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "MAX_SWEPT",
    "NEVER_MS",
    "Inspection",
    "Look",
    "Promoted",
    "Purged",
    "Reaped",
    "Trimmed",
    "cancel",
    "configure",
    "drop",
    "edit",
    "inspect",
    "lengths",
    "promote",
    "prune",
    "purge",
    "reap",
    "recount",
    "redrive",
    "shed",
    "sweep",
    "trim",
]

#: The due time of held messages: the largest integer that a score keeps.
NEVER_MS: Final = 2**53
#: Queues that one sweep looks at.
MAX_SWEPT: Final = 500


@dataclass(frozen=True, slots=True)
class Look:
    """What a sweep saw of one queue. `broken` is the text about a key of another type."""

    queue: str
    next_due_ms: int | None = None
    next_deadline_ms: int | None = None
    expired_at_head: bool = False
    overdue: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Promoted:
    """Delayed messages `moved` to ready, or `ended` (expired or cancelled)."""

    moved: int
    ended: int
    next_due_ms: int | None
    lateness_ms: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """Leases taken back, and what became of their messages; `left` are still overdue."""

    leases: int
    messages: int
    dead: int
    suspects: int
    set_aside: int
    lateness_ms: int
    left: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Expired messages removed from the head; `full`: there may be more."""

    expired: int
    full: bool


@dataclass(frozen=True, slots=True)
class Purged:
    """Messages deleted; `more`: there may be some left."""

    messages: int
    more: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """A queue at one instant. Times in ms since 1970, None where there is none; the journal's size in bytes.

    `held` of the delayed messages have no due time, see `Queue.hold`.
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

    @property
    def exists(self) -> bool:
        """Whether the queue has been made or sent to, or holds anything."""
        return bool(
            self.meta or self.stats or self.ready or self.delayed or self.leases or self.dead
        )

    @property
    def created_ms(self) -> int | None:
        """When its attributes were first set; None where they never were."""
        return _whole(self.meta.get("created_ms"))

    @property
    def modified_ms(self) -> int | None:
        """When its attributes were last set; None where they never were."""
        return _whole(self.meta.get("modified_ms"))

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


def sweep(
    queues: Sequence[QueueKeys], tick_ms: int, *, leases: int = 10, now_ms: int | None = None
) -> Command[tuple[int, list[Look]]]:
    """Look at up to `MAX_SWEPT` queues. Returns the server's time in ms and a look at each."""
    names: list[str] = []
    for keys in queues:
        names += (keys.delayed, keys.unacked, keys.ready[0], keys.stats, keys.meta)

    def decode(reply: Any) -> tuple[int, list[Look]]:
        _, now, *seen = accepted(reply, "")
        return int(now), [
            _look(keys.queue, found) for keys, found in zip(queues, seen, strict=True)
        ]

    return Command(load_script("sweep"), tuple(names), (_now(now_ms), tick_ms, leases), decode)


def _look(queue: str, found: Any) -> Look:
    if isinstance(found, bytes):
        return Look(queue, broken=found.decode("utf-8", "replace"))
    due, deadline, expired, *overdue = found
    return Look(
        queue,
        _maybe(due),
        _maybe(deadline),
        expired == 1,
        tuple(lease_id.decode("utf-8", "replace") for lease_id in overdue),
    )


def promote(keys: QueueKeys, limit: int = 500, *, now_ms: int | None = None) -> Command[Promoted]:
    """Move up to `limit` delayed messages that are due to ready."""

    def decode(reply: Any) -> Promoted:
        _, _, moved, ended, next_due, lateness, _ = accepted(reply, keys.queue)
        return Promoted(moved, ended, _maybe(next_due), int(lateness))

    return Command(load_script("promote"), standard_keys(keys), (_now(now_ms), limit), decode)


def reap(
    keys: QueueKeys, lease_ids: Sequence[str], tick_ms: int, *, now_ms: int | None = None
) -> Command[Reaped]:
    """Take back the messages of those leases that are overdue."""

    def decode(reply: Any) -> Reaped:
        _, _, leases, messages, dead, suspects, aside, lateness, left, _ = accepted(
            reply, keys.queue
        )
        return Reaped(leases, messages, dead, suspects, aside, int(lateness), left)

    return Command(
        load_script("reap"), standard_keys(keys, *lease_ids), (_now(now_ms), tick_ms), decode
    )


def trim(keys: QueueKeys, limit: int = 1000, *, now_ms: int | None = None) -> Command[Trimmed]:
    """Remove up to `limit` expired messages from the head of each level of ready."""

    def decode(reply: Any) -> Trimmed:
        _, _, expired, full, _ = accepted(reply, keys.queue)
        return Trimmed(expired, full == 1)

    return Command(load_script("trim"), standard_keys(keys), (_now(now_ms), limit), decode)


def prune(
    keys: QueueKeys,
    idle_ms: int = 900_000,
    cursors: tuple[str, str] = ("0", "0"),
    *,
    now_ms: int | None = None,
) -> Command[tuple[tuple[str, str], int]]:
    """Forget idle lanes, expired unique keys and tombstones. Returns the next cursors and what was forgotten."""

    def decode(reply: Any) -> tuple[tuple[str, str], int]:
        _, _, lanes, uniques, forgotten = accepted(reply, keys.queue)
        return (lanes.decode(), uniques.decode()), forgotten

    return Command(
        load_script("prune"),
        (keys.producers, keys.unique, keys.cancelled, keys.meta),
        (_now(now_ms), idle_ms, *cursors),
        decode,
    )


def purge(
    keys: QueueKeys, state: str, limit: int = 1000, *, now_ms: int | None = None
) -> Command[Purged]:
    """Delete up to `limit` messages of a state (ready, delayed, dead), or up to 1 MiB of them."""

    def decode(reply: Any) -> Purged:
        _, _, messages, more, _ = accepted(reply, keys.queue)
        return Purged(messages, more == 1)

    return Command(load_script("purge"), standard_keys(keys), (_now(now_ms), state, limit), decode)


def redrive(
    keys: QueueKeys, entry_ids: Sequence[str], *, now_ms: int | None = None
) -> Command[tuple[int, ...]]:
    """Put up to 100 dead letters back to ready: 1 redriven, 0 not there, -1 foreign, per entry id."""

    def decode(reply: Any) -> tuple[int, ...]:
        return tuple(accepted(reply, keys.queue)[3:])

    return Command(load_script("redrive"), standard_keys(keys), (_now(now_ms), *entry_ids), decode)


def drop(keys: QueueKeys, entry_ids: Sequence[str], *, now_ms: int | None = None) -> Command[int]:
    """Delete up to 100 dead letters; returns how many there were."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[2])

    return Command(load_script("drop"), standard_keys(keys), (_now(now_ms), *entry_ids), decode)


def edit(keys: QueueKeys, entry_id: str, body: bytes, *, now_ms: int | None = None) -> Command[str]:
    """Give a dead letter another body; returns its new entry id, '' where it is not there, 'foreign' where it is that.

    The reply raises `BodyTooLargeError`; then nothing was written.
    """

    def decode(reply: Any) -> str:
        made: bytes = accepted(reply, keys.queue)[2]
        return made.decode()

    return Command(load_script("edit"), standard_keys(keys), (_now(now_ms), entry_id, body), decode)


def recount(keys: QueueKeys, *, now_ms: int | None = None) -> Command[int]:
    """Bring the counter of stored messages back between its bounds; returns by how much it was changed."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[2])

    return Command(load_script("recount"), standard_keys(keys), (_now(now_ms),), decode)


def shed(queues: Sequence[QueueKeys], *, on: bool, now_ms: int | None = None) -> Command[int]:
    """Stop writing the journals of up to `MAX_SWEPT` queues, or go on; returns of how many that was a change."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, "")[2])

    return Command(
        load_script("shed"), tuple(keys.meta for keys in queues), (_now(now_ms), int(on)), decode
    )


def configure(
    keys: QueueKeys, attributes: dict[str, str], *, now_ms: int | None = None
) -> Command[int]:
    """Set attributes as stored in meta; '' removes one. Returns the server's time in ms."""
    words: list[Word] = []
    for name, value in attributes.items():
        words += (name, value)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(load_script("configure"), (keys.meta, keys.wake), (_now(now_ms), *words), decode)


def cancel(
    keys: QueueKeys, message_id: str, kept_ms: int, *, now_ms: int | None = None
) -> Command[int]:
    """Leave a tombstone: whoever meets the message within `kept_ms` drops it. Returns the server's time in ms."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(
        load_script("cancel"),
        (keys.cancelled, keys.meta),
        (_now(now_ms), message_id, kept_ms),
        decode,
    )


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
            _maybe(oldest),
            None if due and int(due) >= NEVER_MS else _maybe(due),
            _maybe(deadline),
            {
                name: int(value)
                for name, value in _pairs(stats)
                if value.removeprefix("-").isdecimal()
            },
            dict(_pairs(meta)),
            journal_entries,
            int(journal_bytes),
            held,
        )

    return Command(load_script("inspect"), standard_keys(keys), (_now(now_ms),), decode)


def lengths(queues: Sequence[QueueKeys]) -> Command[list[int | None]]:
    """Count the ready messages of up to 100 queues; None for one of which a key holds another type."""

    def decode(reply: Any) -> list[int | None]:
        return [None if each < 0 else each for each in accepted(reply, "")[2:]]

    names = tuple(name for keys in queues for name in (*keys.ready, keys.suspect))
    return Command(load_script("lengths"), names, (), decode)


def _now(now_ms: int | None) -> Word:
    return "" if now_ms is None else now_ms


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _maybe(word: bytes) -> int | None:
    return int(word) if word else None


def _pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    words = [word.decode("utf-8", "replace") for word in flat]
    return list(zip(words[::2], words[1::2], strict=True))
