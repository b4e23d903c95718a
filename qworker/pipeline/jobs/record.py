"""Is the record whole? Finds events that are missing, with the reason, and rows that are there twice.

Numbers of events are dense within an epoch, so what is missing shows; rows `gap` say why, rows `mode` when the journal
was off, and the offsets of an archive how far its rows must reach. `qworker.pipeline.jobs.holes` has the reasons.

Cost: two passes over a few columns; more only for epochs whose numbers do not add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.holes import (
    Gap,
    Hole,
    Shard,
    Span,
    before_all,
    journal_off,
    missing,
    sends_unheard,
)
from qworker.pipeline.jobs.spans import each_once, inside, read_spans
from qworker.pipeline.source.offsets import Offsets
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Record", "Seen", "examine"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of the record that an earlier audit has seen, until `at`.

    `begins`: shard → its epoch, and the number of the first event that was not seen. `events`: those that still matter,
    and the mode of each journal that does not have everything; `holes`: those that the end of such a message may be in;
    `lasts`: shard → the time of its last event.
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
    #: The last row `mode` of each journal that is off or has outcomes: queue, shard, epoch, number, event, ts, reason.
    modes: Sequence[Any] = ()
    lasts: Mapping[Shard, datetime] = field(default_factory=dict)
    #: The last event `unsure` of each shard: an end of a message before it may be in it.
    unsure: tuple[Hole, ...] = ()
    #: Stretches in which sends were not journalled.
    unheard: tuple[Hole, ...] = ()


@dataclass(frozen=True, slots=True)
class _Special:
    """The rows that are of no message, by shard."""

    gaps: Mapping[Shard, list[Gap]]
    modes: Mapping[Shard, list[Any]]
    back: Mapping[Shard, list[Gap]]
    gone: Mapping[Shard, list[Gap]]

    @classmethod
    def of(cls, rows: Sequence[Any]) -> _Special:
        gaps: dict[Shard, list[Gap]] = defaultdict(list)
        modes: dict[Shard, list[Any]] = defaultdict(list)
        back: dict[Shard, list[Gap]] = defaultdict(list)
        gone: dict[Shard, list[Gap]] = defaultdict(list)
        kinds = {"rolled back": back, "queue gone": gone}
        for row in rows:
            shard = (row.queue, row.shard)
            if row.event == "mode":
                modes[shard].append(row)
                continue
            gap = Gap.of(row)
            kinds.get(gap.why, gaps)[shard].append(gap)
        return cls(gaps, modes, back, gone)


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
    rows = events.where("event in ('gap', 'mode')").select(*columns)
    if seen is not None:
        rows = rows.unionByName(seen.events.where("event = 'mode'").select(*columns))
    special = _Special.of(rows.distinct().collect())
    carried = None if seen is None else seen.events.where("event <> 'mode'")
    if special.back:
        both = events if carried is None else events.unionByName(carried)
        forgotten = _forgotten(special.back, read_spans(both))
        events = events.where(~forgotten)
        carried = None if carried is None else carried.where(~forgotten)
    spans = read_spans(events)
    doubled: dict[Shard, int] = defaultdict(int)
    begins = {} if seen is None else _begins(seen, special.back)
    again = _again(begins, spans)
    if again is not None:
        for row in events.where(again).groupBy("queue", "shard").count().collect():
            doubled[row.queue, row.shard] += row["count"]
        events = events.where(~again)
        spans = read_spans(events)
    holes: list[Hole] = []
    broken = [span for of_shard in spans.values() for span in of_shard if not span.whole]
    if broken:
        events, more, reused = each_once(events, broken)
        for shard, number in more.items():
            doubled[shard] += number
        holes += reused
    between = inside(events, broken)
    lasts = {
        shard: max(times)
        for shard, of_shard in spans.items()
        if (times := [span.until for span in of_shard if span.until is not None])
    }
    unsure = tuple(hole for of_shard in spans.values() for hole in _unsure(of_shard))
    for shard, (epoch, number) in begins.items():
        if number:
            assert seen is not None
            last = seen.lasts.get(shard, seen.at)
            before = Span(*shard, epoch, 0, 0, number - 1, None, last, whole=True)
            spans.setdefault(shard, []).insert(0, before)
    archived = {split_shard_name(name): position for name, position in (ends or {}).items()}
    for shard in {*spans, *special.gaps, *archived}:
        of_shard, end = spans.get(shard, []), archived.get(shard)
        told = missing(shard, of_shard, special.gaps.get(shard, []), between, end)
        begun = shard[0] in earlier
        holes += [hole for hole in told if not (begun and before_all(hole, of_shard))]
    for shard, of_modes in special.modes.items():
        holes += journal_off(shard, of_modes)
    for shard, gaps in special.back.items():
        holes += [gap.hole(shard, gap.ts) for gap in gaps]
    for shard, gaps in special.gone.items():
        since = lasts.get(shard) or (None if seen is None else seen.lasts.get(shard))
        holes += [gap.hole(shard, since) for gap in gaps]
    holes.sort(key=lambda hole: (hole.queue, hole.shard, hole.epoch, hole.after))
    last_modes = (
        max(each, key=lambda row: (row.ts, row.epoch, row.number))
        for each in special.modes.values()
    )
    return Record(
        events if carried is None else events.unionByName(carried),
        events,
        tuple(holes),
        dict(doubled),
        [row for row in last_modes if row.reason != "all"],
        lasts,
        unsure,
        tuple(
            hole
            for shard, of_modes in special.modes.items()
            for hole in sends_unheard(shard, of_modes)
        ),
    )


def _unsure(spans: Sequence[Span]) -> list[Hole]:
    """The event `unsure` of each epoch that has any, as a hole that ends with it."""
    return [
        Hole(span.queue, span.shard, span.epoch, span.unsure[0], None, None, at, "unsure")
        for span in spans
        if span.unsure is not None and (at := span.unsure[1]) is not None
    ]


def _begins(seen: Seen, back: Mapping[Shard, Sequence[Gap]]) -> dict[Shard, tuple[int, int]]:
    """How far each shard was seen, without events rolled back since."""
    return {
        shard: min([begin, *((gap.epoch, gap.number) for gap in back.get(shard, ()))])
        for shard, begin in seen.begins.items()
    }


def _again(
    begins: Mapping[Shard, tuple[int, int]], spans: Mapping[Shard, Sequence[Span]]
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
    back: Mapping[Shard, Sequence[Gap]], spans: Mapping[Shard, Sequence[Span]]
) -> Column:
    """Whether an event was rolled back: later in the journal than the fork, and written before that was noticed.

    Epochs follow in the order of their times: if the clock was set back, a later one has a smaller number.
    """
    from pyspark.sql import functions as F

    def test(shard: Shard, gap: Gap) -> Column:
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
