"""Holes in the record of a shard: where events are missing, how many, and why. No Spark here.

trimmed       the journal was trimmed, or entries were deleted, before they were read
shed          the server was nearly full: events were counted and not written
file gone     the archive had the events: a file was deleted or replaced
rolled back   Redis came back with older data: the events are in the record, and count no more
used twice    different events have the same numbers: Redis was rolled back, and it was not noticed at the time
journal off   the mode was `off`; what happened meanwhile is unknown
new epoch     the queue was removed and made again, or its counters were lost; what happened between is unknown
queue gone    the archive knows a journal that Redis does not have: the queue or shard was removed, or lost
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

__all__ = [
    "GONE",
    "IN_RECORD",
    "UNKNOWN",
    "Gap",
    "Hole",
    "Shard",
    "Span",
    "before_all",
    "journal_off",
    "missing",
    "sends_unheard",
    "utc",
]

#: The reason of a hole, and of the row `gap` that stands for it in a read of archive and journal.
GONE: Final = "queue gone"
#: Reasons for which it is unknown whether anything is missing.
UNKNOWN: Final = ("journal off", "new epoch", GONE)
#: Holes whose events are in the record, except those without their own number.
IN_RECORD: Final = ("rolled back", "used twice")
_COUNT: Final = re.compile(r"(\d+) events")

Shard = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch of the journal of one shard. `after`: the last number before it, -1 for none; `missing`: None: unknown.

    `since` and `until` are the times of the neighbours; None: there is none.
    """

    queue: str
    shard: int
    epoch: int
    after: int
    missing: int | None
    since: datetime | None
    until: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class Span:
    """The events of one epoch of one shard. `unsure`: the number and time of the last event `unsure`.

    `stored`: the last number that is in the archive, `stored_until` the last time; None: all are read from the live
    journal.
    """

    queue: str
    shard: int
    epoch: int
    rows: int
    least: int
    most: int
    since: datetime | None
    until: datetime | None
    whole: bool
    unsure: tuple[int, datetime | None] | None = None
    stored: int | None = None
    stored_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A row `gap`: events from `number` on that the reader did not find. `events` None: not known."""

    epoch: int
    number: int
    events: int | None
    ts: datetime | None
    reason: str

    @classmethod
    def of(cls, row: Any) -> Gap:
        """Read a row."""
        reason = row.reason or ""
        return cls(row.epoch, row.number, cls.count_in(reason), utc(row.ts), reason)

    @staticmethod
    def count_in(reason: str) -> int | None:
        """How many events a reason names; None: it does not say."""
        count = _COUNT.match(reason)
        return int(count[1]) if count else None

    @property
    def why(self) -> str:
        """The reason of its hole."""
        for word in (GONE, "rolled back", "shed"):
            if word in self.reason:
                return word
        return "trimmed"

    def hole(self, shard: Shard, since: datetime | None) -> Hole:
        """Make the hole of a row that says all of it."""
        until = None if self.why == GONE else self.ts
        return Hole(*shard, self.epoch, self.number - 1, self.events, since, until, self.why)


def missing(
    shard: Shard,
    spans: Sequence[Span],
    gaps: Sequence[Gap],
    inside: Mapping[tuple[str, int, int], Sequence[Any]],
    end: Any,
    known: Collection[int] = (),
) -> Iterator[Hole]:
    """Yield the holes of one shard: before, between and after its events. `known`: epochs that were read before."""

    def cause(epoch: int, first: int, stop: int) -> str:
        for gap in gaps:
            reach = gap.number + max(1, gap.events or 1)
            if gap.epoch == epoch and gap.number < stop and first < reach:
                return gap.why
        if end is None:
            return "trimmed"
        known = stop <= (end.event or 0) if epoch == end.epoch else epoch in stored
        return "file gone" if known else "trimmed"

    stored = {span.epoch for span in spans if span.stored is not None}

    previous: Span | None = None
    for span in spans:
        begun = 0 if previous is None else previous.most + 1
        if previous is not None and previous.epoch != span.epoch:
            if span.epoch not in known:
                yield Hole(*shard, span.epoch, -1, None, previous.until, span.since, "new epoch")
            begun = 0
        if span.least > begun:
            why = cause(span.epoch, begun, span.least)
            before = None if previous is None else previous.until
            yield Hole(*shard, span.epoch, begun - 1, span.least - begun, before, span.since, why)
        for row in inside.get((*shard, span.epoch), ()) if span.rows else ():
            why = cause(span.epoch, row.after + 1, row.number)
            times = (utc(row.since), utc(row.until))
            yield Hole(*shard, span.epoch, row.after, row.number - row.after - 1, *times, why)
        previous = span
    # Behind the last event of an epoch: what a reader missed there, and what the archive must have.
    last = {span.epoch: span for span in spans}
    reached = {span.epoch: span.most + 1 for span in spans}
    for gap in sorted(gaps, key=lambda gap: (gap.epoch, gap.number)):
        stop = gap.number + (gap.events or 1)
        begun = reached.get(gap.epoch, gap.number)
        if stop <= begun:
            continue
        since = last[gap.epoch].until if gap.epoch in last else None
        if gap.number > begun:
            yield Hole(*shard, gap.epoch, begun - 1, gap.number - begun, since, gap.ts, "file gone")
        first = max(begun, gap.number)
        number = None if gap.events is None else stop - first
        yield Hole(*shard, gap.epoch, first - 1, number, since, gap.ts, gap.why)
        reached[gap.epoch] = stop
    if end is not None and end.event is not None:
        begun = reached.get(end.epoch, 0)
        if begun < end.event:
            since = last[end.epoch].until if end.epoch in last else None
            yield Hole(*shard, end.epoch, begun - 1, end.event - begun, since, None, "file gone")


def before_all(hole: Hole, spans: Sequence[Span]) -> bool:
    """Whether a hole lies before all events of its shard, or in an epoch without any: earlier events may fill it."""
    epochs = {span.epoch for span in spans}
    return (
        hole.after == -1
        and hole.since is None
        and hole.why in ("file gone", "trimmed")
        and (hole.epoch not in epochs or (bool(spans) and hole.epoch == spans[0].epoch))
    )


def journal_off(shard: Shard, rows: Sequence[Any]) -> Iterator[Hole]:
    """Yield the stretches in which the journal of a shard was off, by its rows `mode` in their order."""
    begun: Any = None
    for row in rows:
        if row.reason == "off":
            begun = begun or row
        elif begun is not None:
            yield _stretch(shard, begun, row, "journal off")
            begun = None
    if begun is not None:
        yield _stretch(shard, begun, None, "journal off")


def sends_unheard(shard: Shard, rows: Sequence[Any]) -> Iterator[Hole]:
    """Yield the stretches in which the journal had outcomes only, by its rows `mode` in their order."""
    begun: Any = None
    for number, row in enumerate(rows):
        if row.reason == "outcomes":
            begun = begun or row
        elif begun is not None or (number == 0 and row.reason == "all"):
            # A journal that is changed to `all`, and was not off, had outcomes before.
            yield _stretch(shard, begun, row, "outcomes")
            begun = None
    if begun is not None:
        yield _stretch(shard, begun, None, "outcomes")


def _stretch(shard: Shard, begun: Any, end: Any, why: str) -> Hole:
    at = end if begun is None else begun
    since, until = (None if row is None else utc(row.ts) for row in (begun, end))
    return Hole(*shard, at.epoch, at.number, None, since, until, why)


def utc(moment: datetime | None) -> datetime | None:
    """Add the zone: Spark returns naive times in the zone of this process."""
    return None if moment is None else moment.astimezone(UTC)
