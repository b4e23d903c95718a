"""Is the record whole? Which events are missing from it and why, and which rows are there twice.

Numbers of events are dense within an epoch, so what is missing shows; rows `gap` say why, rows `mode` when the journal
was off, and the offsets of an archive how far its rows must reach. Why there is a hole:

    trimmed       the journal was trimmed, or entries were deleted, before they were read
    shed          the server was nearly full: events were counted and not written
    file gone     the archive had the events: a file was deleted or replaced
    rolled back   Redis came back with older data: the events are in the record, and count no more
    used twice    different events have the same numbers: Redis was rolled back, and it was not noticed at the time
    journal off   the mode was `off`; what happened meanwhile is unknown
    new epoch     the queue was removed and made again, or its counters were lost; what happened between is unknown

Cost: two passes over a few columns; more only for epochs whose numbers do not add up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.source.offsets import Offsets
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["IN_RECORD", "UNKNOWN", "Hole", "Record", "Seen", "Shard", "examine"]

#: Reasons for which it is unknown whether anything is missing.
UNKNOWN: Final = ("journal off", "new epoch")
#: Holes whose events are in the record, except those without their own number.
IN_RECORD: Final = ("rolled back", "used twice")
#: Numbers are also added up by their last 16 bits, squared, so that no missing ones hide behind doubled ones.
_BITS: Final = 65_536
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
class Seen:
    """What an earlier audit has seen of the record, until `at`.

    `begins`: shard → its epoch, and the number of the first event that was not seen. `events`: those that still matter,
    and the mode of each journal that was off; `holes`: those that the end of such a message may be in; `lasts`: shard →
    the time of its last event.
    """

    at: datetime
    begins: Mapping[Shard, tuple[int, int]]
    events: DataFrame
    holes: tuple[Hole, ...]
    lasts: Mapping[Shard, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The faults of a record, and its events without them: each once, and without those rolled back.

    `fresh`: those that no earlier run has seen; `lasts`: shard → the time of its last event among these.
    """

    events: DataFrame
    fresh: DataFrame
    holes: tuple[Hole, ...]
    #: (queue, shard) → rows that are there again.
    doubled: Mapping[Shard, int] = field(default_factory=dict)
    #: The last row `mode` of each journal that is off: queue, shard, epoch, number, event, ts, reason.
    off: Sequence[Any] = ()
    lasts: Mapping[Shard, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Span:
    """The events of one epoch of one shard."""

    queue: str
    shard: int
    epoch: int
    rows: int
    least: int
    most: int
    since: datetime | None
    until: datetime | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _Gap:
    """A row `gap`: events from `number` on that the reader did not find. `events` None: not known."""

    epoch: int
    number: int
    events: int | None
    ts: datetime | None
    reason: str

    @property
    def why(self) -> str:
        return "shed" if "shed" in self.reason else "trimmed"


def examine(
    events: DataFrame,
    ends: Offsets | None = None,
    earlier: frozenset[str] = frozenset(),
    seen: Seen | None = None,
) -> Record:
    """Examine events (columns of `journal`). `ends`: how far the rows of an archive among them must reach.

    `earlier`: queues of which there are earlier events, which were left out: their numbers need not begin at 0.
    `seen`: what comes before `events`; the holes of the result are those of `events`.
    """
    columns = ("queue", "shard", "epoch", "number", "event", "ts", "reason")
    special = events.where("event in ('gap', 'mode')").select(*columns)
    if seen is not None:
        special = special.unionByName(seen.events.where("event = 'mode'").select(*columns))
    gaps: dict[Shard, list[_Gap]] = defaultdict(list)
    modes: dict[Shard, list[Any]] = defaultdict(list)
    back: dict[Shard, list[_Gap]] = defaultdict(list)
    for row in special.distinct().collect():
        shard = (row.queue, row.shard)
        if row.event == "mode":
            modes[shard].append(row)
            continue
        count = _COUNT.match(row.reason or "")
        gap = _Gap(
            row.epoch, row.number, int(count[1]) if count else None, _utc(row.ts), row.reason or ""
        )
        (back if "rolled back" in gap.reason else gaps)[shard].append(gap)
    carried = None if seen is None else seen.events.where("event <> 'mode'")
    if back:
        rows = events if carried is None else events.unionByName(carried)
        forgotten = _forgotten(back, _spans(rows))
        events = events.where(~forgotten)
        carried = None if carried is None else carried.where(~forgotten)
    spans = _spans(events)
    holes: list[Hole] = []
    doubled: dict[Shard, int] = defaultdict(int)
    if seen is not None:
        again = _again(_begins(seen, back), spans)
        if again is not None:
            for row in events.where(again).groupBy("queue", "shard").count().collect():
                doubled[row.queue, row.shard] += row["count"]
            events = events.where(~again)
            spans = _spans(events)
    broken = [span for of_shard in spans.values() for span in of_shard if not span.whole]
    if broken:
        events, more, reused = _each_once(events, broken)
        for shard, number in more.items():
            doubled[shard] += number
        holes += reused
    inside = _inside(events, broken) if broken else {}
    lasts = {
        shard: max(span.until for span in of_shard if span.until is not None)
        for shard, of_shard in spans.items()
        if any(span.until is not None for span in of_shard)
    }
    archived = {split_shard_name(name): position for name, position in (ends or {}).items()}
    if seen is not None:
        for shard, (epoch, number) in _begins(seen, back).items():
            if number:
                spans.setdefault(shard, []).insert(
                    0,
                    _Span(
                        *shard, epoch, 0, 0, number - 1, None, seen.lasts.get(shard, seen.at), True
                    ),
                )
    for shard in {*spans, *gaps, *archived}:
        end = archived.get(shard)
        told = _missing(shard, spans.get(shard, []), gaps.get(shard, []), inside, end)
        begun = shard[0] in earlier
        holes += [hole for hole in told if not (begun and _before_all(hole, spans.get(shard, [])))]
    holes += [hole for shard, rows in modes.items() for hole in _off(shard, rows)]
    holes += [
        Hole(*shard, gap.epoch, gap.number - 1, gap.events, gap.ts, gap.ts, "rolled back")
        for shard, rows in back.items()
        for gap in rows
    ]
    holes.sort(key=lambda hole: (hole.queue, hole.shard, hole.epoch, hole.after))
    last = (max(rows, key=lambda row: (row.ts, row.epoch, row.number)) for rows in modes.values())
    return Record(
        events if carried is None else events.unionByName(carried),
        events,
        tuple(holes),
        dict(doubled),
        [row for row in last if row.reason == "off"],
        lasts,
    )


def _begins(seen: Seen, back: Mapping[Shard, Sequence[_Gap]]) -> dict[Shard, tuple[int, int]]:
    """How far each shard was seen, without events rolled back since."""
    return {
        shard: min([begin, *((gap.epoch, gap.number) for gap in back.get(shard, ()))])
        for shard, begin in seen.begins.items()
    }


def _again(
    begins: Mapping[Shard, tuple[int, int]], spans: Mapping[Shard, Sequence[_Span]]
) -> Column | None:
    """Whether an event was seen before: a file was archived once more. None: no epoch begins so early."""
    from pyspark.sql import functions as F

    tests = [
        (F.col("queue") == span.queue)
        & (F.col("shard") == span.shard)
        & (F.col("epoch") == span.epoch)
        & (F.col("number") < number)
        & (F.col("event") != "gap")
        for shard, (epoch, number) in begins.items()
        for span in spans.get(shard, ())
        if span.epoch == epoch and span.least < number
    ]
    return reduce(or_, tests) if tests else None


def _forgotten(
    back: Mapping[Shard, Sequence[_Gap]], spans: Mapping[Shard, Sequence[_Span]]
) -> Column:
    """Whether an event was rolled back: later in the journal than the fork, and written before that was noticed.

    Epochs follow in the order of their times: if the clock was set back, a later one has a smaller number.
    """
    from pyspark.sql import functions as F

    def test(shard: Shard, gap: _Gap) -> Column:
        epochs = [span.epoch for span in spans.get(shard, ())]
        if gap.epoch in epochs:
            later = F.col("epoch").isin(epochs[epochs.index(gap.epoch) + 1 :])
        else:
            later = F.col("epoch") > gap.epoch
        behind = later | ((F.col("epoch") == gap.epoch) & (F.col("number") >= gap.number))
        earlier = F.col("ts") < F.lit(gap.ts)
        own = (F.col("queue") == shard[0]) & (F.col("shard") == shard[1])
        return own & behind & F.coalesce(earlier, F.lit(False)) & (F.col("event") != "gap")

    return reduce(or_, (test(shard, gap) for shard, rows in back.items() for gap in rows))


def _spans(events: DataFrame) -> dict[Shard, list[_Span]]:
    """Read the spans of the epochs of each shard, in the order of time."""
    from pyspark.sql import functions as F

    low = F.col("number") % _BITS
    rows = (
        events.where("event <> 'gap'")
        .groupBy("queue", "shard", "epoch")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("number").alias("least"),
            F.max("number").alias("most"),
            F.min("ts").alias("since"),
            F.max("ts").alias("until"),
            F.sum(F.col("number").cast("decimal(20,0)")).alias("total"),
            F.sum(low * low).alias("squares"),
        )
        .collect()
    )
    spans: dict[Shard, list[_Span]] = defaultdict(list)
    for row in rows:
        expected = row.most - row.least + 1
        whole = (
            row.rows == expected
            and int(row.total) == (row.least + row.most) * expected // 2
            and row.squares == _squares(row.most + 1) - _squares(row.least)
        )
        spans[row.queue, row.shard].append(
            _Span(
                row.queue,
                row.shard,
                row.epoch,
                row.rows,
                row.least,
                row.most,
                _utc(row.since),
                _utc(row.until),
                whole,
            )
        )
    for of_shard in spans.values():
        of_shard.sort(key=lambda span: (span.since or datetime.min.replace(tzinfo=UTC), span.epoch))
    return spans


def _squares(stop: int) -> int:
    """Add up the squares of the last 16 bits of 0 … stop - 1."""
    rounds, rest = divmod(stop, _BITS)

    def up_to(number: int) -> int:
        return (number - 1) * number * (2 * number - 1) // 6

    return rounds * up_to(_BITS) + up_to(rest)


def _of(spans: Sequence[_Span]) -> Column:
    """Whether a row belongs to one of these epochs."""
    from pyspark.sql import functions as F

    return reduce(
        or_,
        (
            (F.col("queue") == span.queue)
            & (F.col("shard") == span.shard)
            & (F.col("epoch") == span.epoch)
            for span in spans
        ),
    )


def _each_once(
    events: DataFrame, broken: Sequence[_Span]
) -> tuple[DataFrame, dict[Shard, int], list[Hole]]:
    """Leave out rows that are there again; count them, and find numbers that different events have."""
    from pyspark.sql import functions as F

    epochs = ["queue", "shard", "epoch"]
    same = [*epochs, "number", "event", "message_id", "ts"]
    within = _of(broken) & (F.col("event") != "gap")
    numbers = (
        events.where(within)
        .groupBy(*same)
        .agg(F.count(F.lit(1)).alias("rows"))
        .groupBy(*epochs, "number")
        .agg(
            F.sum(F.col("rows") - 1).alias("again"),
            F.count(F.lit(1)).alias("versions"),
            F.min("ts").alias("since"),
            F.max("ts").alias("until"),
        )
        .where("again > 0 or versions > 1")
        .groupBy(*epochs)
        .agg(
            F.sum("again").alias("again"),
            F.sum(F.col("versions") - 1).alias("reused"),
            F.min(F.when(F.col("versions") > 1, F.col("number"))).alias("first"),
            F.min(F.when(F.col("versions") > 1, F.col("since"))).alias("since"),
            F.max(F.when(F.col("versions") > 1, F.col("until"))).alias("until"),
        )
        .collect()
    )
    if not numbers:
        return events, {}, []
    doubled: dict[Shard, int] = defaultdict(int)
    reused = []
    for row in numbers:
        if row.again:
            doubled[row.queue, row.shard] += row.again
        if row.reused:
            where = (row.queue, row.shard, row.epoch, row["first"] - 1)
            times = (_utc(row.since), _utc(row.until))
            reused.append(Hole(*where, row.reused, *times, "used twice"))
    once = events.where(within).dropDuplicates(same)
    return events.where(~within).unionByName(once), dict(doubled), reused


def _inside(events: DataFrame, broken: Sequence[_Span]) -> dict[tuple[str, int, int], list[Any]]:
    """Find the numbers that are missing between others: (queue, shard, epoch) → rows before, number and their times."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    epochs = ["queue", "shard", "epoch"]
    before = F.lag(F.struct("number", "ts")).over(Window.partitionBy(*epochs).orderBy("number"))
    rows = (
        events.where(_of(broken) & (F.col("event") != "gap"))
        .select(*epochs, "number", "ts")
        .withColumn("before", before)
        .where("number - before.number > 1")
        .select(
            *epochs,
            "number",
            F.col("ts").alias("until"),
            F.col("before.number").alias("after"),
            F.col("before.ts").alias("since"),
        )
        .orderBy(*epochs, "number")
        .collect()
    )
    found: dict[tuple[str, int, int], list[Any]] = defaultdict(list)
    for row in rows:
        found[row.queue, row.shard, row.epoch].append(row)
    return found


def _missing(
    shard: Shard,
    spans: Sequence[_Span],
    gaps: Sequence[_Gap],
    inside: Mapping[tuple[str, int, int], Sequence[Any]],
    end: Any,
) -> Iterator[Hole]:
    """Yield the holes of one shard: before, between and after its events."""

    def cause(epoch: int, first: int, stop: int) -> str:
        for gap in gaps:
            reach = gap.number + max(1, gap.events or 1)
            if gap.epoch == epoch and gap.number < stop and first < reach:
                return gap.why
        known = end is not None and (epoch, stop) <= (end.epoch, end.event or 0)
        return "file gone" if known else "trimmed"

    previous: _Span | None = None
    for span in spans:
        begun = 0 if previous is None else previous.most + 1
        if previous is not None and previous.epoch != span.epoch:
            yield Hole(*shard, span.epoch, -1, None, previous.until, span.since, "new epoch")
            begun = 0
        if span.least > begun:
            why = cause(span.epoch, begun, span.least)
            before = None if previous is None else previous.until
            number = span.least - begun
            yield Hole(*shard, span.epoch, begun - 1, number, before, span.since, why)
        for row in inside.get((*shard, span.epoch), ()) if span.rows else ():
            why = cause(span.epoch, row.after + 1, row.number)
            missing = row.number - row.after - 1
            times = (_utc(row.since), _utc(row.until))
            yield Hole(*shard, span.epoch, row.after, missing, *times, why)
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
        missing = None if gap.events is None else stop - first
        yield Hole(*shard, gap.epoch, first - 1, missing, since, gap.ts, gap.why)
        reached[gap.epoch] = stop
    if end is not None and end.event is not None:
        begun = reached.get(end.epoch, 0)
        if begun < end.event:
            since = last[end.epoch].until if end.epoch in last else None
            yield Hole(*shard, end.epoch, begun - 1, end.event - begun, since, None, "file gone")


def _before_all(hole: Hole, spans: Sequence[_Span]) -> bool:
    """Whether a hole lies before all events of its shard, or in an epoch without any: earlier events may fill it."""
    epochs = {span.epoch for span in spans}
    return (
        hole.after == -1
        and hole.since is None
        and hole.why in ("file gone", "trimmed")
        and (hole.epoch not in epochs or (bool(spans) and hole.epoch == spans[0].epoch))
    )


def _off(shard: Shard, rows: Sequence[Any]) -> Iterator[Hole]:
    """Yield the stretches in which the journal of a shard was off."""
    begun: Any = None
    for row in sorted(rows, key=lambda row: (row.ts, row.epoch, row.number)):
        if row.reason == "off":
            begun = begun or row
        elif begun is not None:
            times = (_utc(begun.ts), _utc(row.ts))
            yield Hole(*shard, begun.epoch, begun.number, None, *times, "journal off")
            begun = None
    if begun is not None:
        since = _utc(begun.ts)
        yield Hole(*shard, begun.epoch, begun.number, None, since, None, "journal off")


def _utc(moment: datetime | None) -> datetime | None:
    """Add the zone: Spark returns naive times in the zone of this process."""
    return None if moment is None else moment.astimezone(UTC)
