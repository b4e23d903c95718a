"""Read the dead letters of a queue in pages, and change many of them, at a rate.

Pages go from the oldest dead letter up to the one that was newest at the start. A script changes each page, as many
dead letters per call as fit in 1 MiB. An interrupted change loses nothing and does nothing twice: the same call
continues with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from qworker.client.dead.filter import DeadFilter, DeadTally
from qworker.client.dead.throttle import Throttle
from qworker.client.message import DeadLetter
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import dead
from qworker.engine.command import Command, Pause, Together
from qworker.engine.raw import raw, server_time
from qworker.errors import QworkerError
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys

__all__ = [
    "PAGE",
    "READ_PAGE",
    "Act",
    "ChangeCounts",
    "DeadLetterScan",
    "change",
    "change_these",
    "drop",
    "entries",
    "narrowed",
    "readings_at",
    "redrive",
]

#: Dead letters per page: bodies are up to 256 KiB by default, and one reply should not block the server for long.
PAGE: Final = 100
#: Dead letters per page of a read that changes nothing.
READ_PAGE: Final = 500
#: Entries that a filter may name for each to be read by itself.
_NAMED: Final = 25


@dataclass(slots=True)
class ChangeCounts:
    """How many dead letters were changed: done, left because they are foreign, or already gone.

    `kept_out`: left because another message holds their unique key. `redriven`: the entries that were redriven.
    """

    done: int = 0
    foreign: int = 0
    gone: int = 0
    redriven: list[EntryId] = field(default_factory=list)
    kept_out: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.done + self.foreign + self.gone + self.kept_out

    def add(self, other: ChangeCounts) -> None:
        """Add the counts of another change."""
        self.done += other.done
        self.foreign += other.foreign
        self.gone += other.gone
        self.kept_out += other.kept_out
        self.redriven += other.redriven


#: Changes the first of up to 100 entries in one script: as many as the result counts, at least one.
Act = Callable[[QueueKeys, Sequence[EntryId]], Command[ChangeCounts]]


class DeadLetterScan:
    """A pass over the dead letters of one shard in pages of up to `size`, oldest or newest first.

    Those that die after its start are left out. Those that were read may go before the next page is read.
    """

    def __init__(
        self,
        queue: QueueRef,
        wanted: DeadFilter,
        *,
        now_ms: int,
        until: EntryId | None = None,
        after: EntryId | None = None,
        newest: bool = False,
        size: int = PAGE,
        empty: bool = False,
    ) -> None:
        self.ended = self._empty = empty
        self._queue = queue
        self._wanted = wanted
        self._now_ms = now_ms
        self._until = until
        self._newest = newest
        self._size = PageSize(size)
        self._start = "+" if newest else "-"
        #: The last entry that was read.
        self.last: EntryId | None = None
        if after is not None:
            self._continue_behind(after)

    @classmethod
    def begin(
        cls, queue: QueueRef, wanted: DeadFilter, *, size: int = PAGE
    ) -> Plan[DeadLetterScan]:
        """Start at the oldest dead letter; server time and newest dead letter are taken now."""
        now_ms: int = yield server_time()
        newest: list[DeadLetter] = yield entries(queue, "XREVRANGE", "+", "-", 1)
        until = newest[0].entry if newest else None
        return cls(queue, wanted, now_ms=now_ms, until=until, size=size, empty=not newest)

    @property
    def keys(self) -> QueueKeys:
        """The keys of the shard."""
        return self._queue.keys

    def again(self, *, size: int = PAGE) -> DeadLetterScan:
        """Start again at the oldest dead letter, with the same bounds."""
        return DeadLetterScan(
            self._queue,
            self._wanted,
            now_ms=self._now_ms,
            until=self._until,
            size=size,
            empty=self._empty,
        )

    def page(self, seen: DeadTally | None = None) -> Plan[list[DeadLetter]]:
        """Read the next page; returns the dead letters that fit, possibly none. `seen` counts all that were read."""
        if self.ended:
            return []
        dead_letters = yield from self._named()
        if not self.ended:
            dead_letters = yield from self._next()
        if seen is not None:
            for dead_letter in dead_letters:
                seen.add(dead_letter)
        return [
            dead_letter
            for dead_letter in dead_letters
            if self._wanted.fits(dead_letter, self._now_ms)
        ]

    def _named(self) -> Plan[list[DeadLetter]]:
        """Read the entries of this shard that the filter names, if it names nothing else; ends if all of them exist.

        An operator takes an entry id from a list: to find it, a million others need not be read.
        """
        if self.last is not None or self._start not in "-+":
            return []  # it has begun, or continues behind an entry
        every, only = self._wanted.entries(), self._wanted.only_entries
        named = [entry for entry in every if entry.shard == self._queue.keys.shard]
        if not 0 < len(every) <= _NAMED or (len(named) < len(every) and not only):
            return []
        found: list[DeadLetter] = []
        for entry in sorted(named, reverse=self._newest):
            if self._until is None or entry <= self._until:
                found += yield entries(self._queue, "XRANGE", entry.in_stream, entry.in_stream, 1)
        if len(found) < len(named) and not only:
            return []
        self.ended = True
        return found

    def _next(self) -> Plan[list[DeadLetter]]:
        if self._newest:
            span = ("XREVRANGE", self._start, "-")
        else:
            span = ("XRANGE", self._start, self._until.in_stream if self._until else "+")
        count = self._size.number
        dead_letters: list[DeadLetter] = yield entries(self._queue, *span, count)
        self.ended = len(dead_letters) < count
        self._size.saw(len(dead_letter.message.item) for dead_letter in dead_letters)
        if dead_letters:
            self.last = dead_letters[-1].entry
            self._continue_behind(dead_letters[-1].entry)
        return dead_letters

    def _continue_behind(self, last: EntryId) -> None:
        following = last.before() if self._newest else last.after()
        if following is None:
            self.ended = True
        else:
            self._start = following.in_stream


def narrowed(
    shards: Sequence[QueueRef], wanted: DeadFilter
) -> Plan[tuple[Sequence[QueueRef], DeadFilter]]:
    """Ask the shards for the entries that a filter names; if all exist, returns only their shards, and `only_entries`.

    Else a shard that has none of them would be read whole, since the id of a message may look like that of an entry.
    """
    places = {shard.keys.shard: shard for shard in shards}
    named = sorted(wanted.entries())
    if len(shards) == 1 or not 0 < len(named) <= _NAMED:
        return shards, wanted
    if not all(entry.shard in places for entry in named):
        return shards, wanted
    answers: list[list[DeadLetter] | QworkerError] = yield Together(
        [
            entries(places[entry.shard], "XRANGE", entry.in_stream, entry.in_stream, 1)
            for entry in named
        ]
    )
    if not all(isinstance(answer, list) and answer for answer in answers):
        return shards, wanted
    having = {entry.shard for entry in named}
    return [shard for shard in shards if shard.keys.shard in having], wanted.of_entries()


def readings_at(queue: QueueRef, wanted: DeadFilter, at_ms: int) -> Plan[list[DeadLetterScan]]:
    """Start a pass in every shard over the dead letters that had died at an instant of the server's clock."""
    shards, wanted = yield from narrowed((yield from queue.every_shard()), wanted)
    return [
        DeadLetterScan(shard, wanted, now_ms=at_ms, until=EntryId.last_of(at_ms, shard.keys.shard))
        for shard in shards
    ]


def change(
    keys: QueueKeys,
    reading: DeadLetterScan,
    act: Act,
    *,
    throttle: Throttle,
    limit: int | None = None,
    on_progress: Callable[[ChangeCounts], None] | None = None,
) -> Plan[ChangeCounts]:
    """Change the dead letters that `reading` yields, at most `limit`; `on_progress` gets the counts of each call."""
    changed, left = ChangeCounts(), limit
    while not reading.ended and left != 0:
        dead_letters = yield from reading.page()
        chosen = [dead_letter.entry for dead_letter in dead_letters[:left]]
        left = None if left is None else left - len(chosen)
        changed.add((yield from change_these(keys, act, chosen, throttle, on_progress)))
    return changed


def change_these(
    keys: QueueKeys,
    act: Act,
    chosen: Sequence[EntryId],
    throttle: Throttle,
    on_progress: Callable[[ChangeCounts], None] | None = None,
) -> Plan[ChangeCounts]:
    """Change the entries of one shard; `on_progress` as of `change`."""
    changed, first = ChangeCounts(), 0
    while first < len(chosen):
        step: ChangeCounts = yield act(keys, chosen[first : first + throttle.batch(PAGE)])
        first += step.total
        changed.add(step)
        if on_progress is not None:
            on_progress(step)
        if wait_s := throttle.done(step.total):
            yield Pause(wait_s)
    return changed


def redrive(keys: QueueKeys, chosen: Sequence[EntryId]) -> Command[ChangeCounts]:
    """Put up to 100 dead letters back to ready."""
    command = dead.redrive(keys, chosen)

    def decode(reply: Any) -> ChangeCounts:
        results = command.decode(reply)
        done = [entry for entry, result in zip(chosen, results, strict=False) if result == 1]
        return ChangeCounts(
            len(done), results.count(-1), results.count(0), done, kept_out=results.count(-2)
        )

    return Command(command.script, command.keys, command.args, decode)


def drop(keys: QueueKeys, chosen: Sequence[EntryId]) -> Command[ChangeCounts]:
    """Delete up to 100 dead letters."""
    command = dead.drop(keys, chosen)

    def decode(reply: Any) -> ChangeCounts:
        dropped, seen = command.decode(reply)
        return ChangeCounts(dropped, gone=seen - dropped)

    return Command(command.script, command.keys, command.args, decode)


def entries(
    queue: QueueRef, verb: str, start: str, end: str, count: int = PAGE
) -> Command[list[DeadLetter]]:
    """Read up to `count` dead letters between two ids in the stream of one shard."""

    def decode(reply: Any) -> list[DeadLetter]:
        return [_dead_letter(queue, entry[0], entry[1]) for entry in reply or []]

    return raw(verb, queue.keys.dead, start, end, "COUNT", count, decode=decode)


def _dead_letter(queue: QueueRef, entry_id: bytes, fields: list[bytes]) -> DeadLetter:
    dead_letter = DeadLetter.of(queue.keys, entry_id, fields)
    message = queue.shown(dead_letter.message)
    return dead_letter if message is dead_letter.message else replace(dead_letter, message=message)
