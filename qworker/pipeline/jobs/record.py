"""Is the record whole? Finds events that are missing, with the reason, and rows that are there twice.

Numbers of events are dense within an epoch, so what is missing shows; rows `gap` say why, rows `mode` when the journal
was off, and the offsets of an archive how far its rows must reach. `qworker.pipeline.jobs.holes` has the reasons.

Cost: two passes over a few columns; more only for epochs whose numbers do not add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.compositions import NOTHING_CARRIED, CarriedGroups
from qworker.pipeline.jobs.deleted import NOTHING_EARLIER, Earlier
from qworker.pipeline.jobs.epochs import Epochs, Known, read_before
from qworker.pipeline.jobs.holes import (
    Hole,
    Shard,
    Span,
    journal_off,
    missing,
    sends_unheard,
)
from qworker.pipeline.jobs.local import together
from qworker.pipeline.jobs.spans import Stretch, each_once, inside, read_spans, split
from qworker.pipeline.jobs.special_rows import SpecialRows, forgotten
from qworker.pipeline.source.offsets import Offsets, Position
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Record", "Seen", "examine"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of the record that an earlier audit has seen, until `at`.

    `begins`: shard → its epochs in their order, and of each the number of the first event that was not seen; it goes on
    in the last one. `events`: those that still matter, and the mode of each journal that does not have everything;
    `holes`: those that the end of such a message may be in; `lasts`: shard → the time of its last event; `groups`: what
    it knows of groups of calls. `rows`: the number of events, None: there are too many for the driver.
    """

    at: datetime
    begins: Mapping[Shard, Known]
    events: DataFrame
    holes: tuple[Hole, ...]
    lasts: Mapping[Shard, datetime] = field(default_factory=dict)
    groups: CarriedGroups = NOTHING_CARRIED
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The faults of a record, and its events without them: each once, and without those rolled back.

    `fresh`: those that no earlier run has seen; `firsts`, `lasts`: shard → the time of its first and last event among
    these; `begins`: how far the archive among them was seen. Column `live`: it is not in the archive.
    """

    events: DataFrame
    fresh: DataFrame
    holes: tuple[Hole, ...]
    #: (queue, shard) → rows that are there again.
    doubled: Mapping[Shard, int] = field(default_factory=dict)
    #: The last row `mode` of each journal that is off or has outcomes: queue, shard, epoch, number, event, ts, reason.
    modes: Sequence[Any] = ()
    lasts: Mapping[Shard, datetime] = field(default_factory=dict)
    firsts: Mapping[Shard, datetime] = field(default_factory=dict)
    #: The last event `unsure` of each shard: an end of a message before it may be in it.
    unsure: tuple[Hole, ...] = ()
    #: Stretches in which sends were not journalled.
    unheard: tuple[Hole, ...] = ()
    begins: Mapping[Shard, Known] = field(default_factory=dict)
    #: The present epoch of each shard that has had others: messages of these went with them. None: it is unknown.
    present: Mapping[Shard, int | None] = field(default_factory=dict)
    #: The time of the last event that the archive has among `fresh`.
    archived: datetime | None = None


def examine(
    events: DataFrame,
    ends: Offsets | None = None,
    earlier: Earlier = NOTHING_EARLIER,
    seen: Seen | None = None,
) -> Record:
    """Examine events (columns of `journal`). `ends`: how far the rows of an archive among them must reach.

    `earlier`: events that were left out: numbers of theirs are not missing.
    `seen`: what comes before `events`; the holes of the result are those of `events`.
    """
    events = _with_live(events)
    special = _special_rows(events, seen)
    carried = None if seen is None else _with_live(seen.events).where("event <> 'mode'")
    archived = {split_shard_name(name): position for name, position in (ends or {}).items()}
    before = {} if seen is None else seen.begins
    if special.back:
        both = events if carried is None else together(events, carried)
        ranges = forgotten(special.back, _in_order(read_spans(both), before, archived), before)
        special.forget(ranges)
        events = split(events, ranges)[1]
        carried = None if carried is None else split(carried, ranges)[1]
    before = read_before(before, special.back)
    once = _once(events, before)
    lasts = _times(once.spans, "until", max)
    spans = _in_order(_with_seen(once.spans, before, seen), before, archived)
    holes, order = [*once.reused], _Order.of(before)
    for shard in {*spans, *special.gaps, *archived}:
        of_shard, end = spans.get(shard, []), archived.get(shard)
        epochs = Epochs(before.get(shard, ()), end)
        order.add(shard, epochs, of_shard)
        read = [epoch for epoch, stop in epochs.known if stop]
        unrecorded = missing(shard, of_shard, special.gaps.get(shard, []), once.between, end, read)
        holes += earlier.left(unrecorded, of_shard)
    holes += _holes_of_rows(special, order, lasts, {} if seen is None else seen.lasts)
    holes.sort(key=lambda hole: (hole.queue, hole.shard, hole.epoch, hole.after))
    last_modes = (rows[-1] for rows in special.modes.values() if rows)
    return Record(
        once.events if carried is None else together(once.events, carried),
        once.events,
        tuple(holes),
        dict(once.doubled),
        [row for row in last_modes if row.reason != "all"],
        lasts,
        _times(once.spans, "since", min),
        tuple(hole for of_shard in once.spans.values() for hole in _unsure(of_shard)),
        tuple(hole for shard, rows in special.modes.items() for hole in sends_unheard(shard, rows)),
        order.begins,
        order.present,
        max(_times(once.spans, "stored_until", max).values(), default=None),
    )


def _special_rows(events: DataFrame, seen: Seen | None) -> SpecialRows:
    """Collect the rows that are of no message, with the modes that were seen before."""
    columns = ("queue", "shard", "epoch", "number", "event", "ts", "reason", "live")
    rows = events.where("event in ('gap', 'mode')").select(*columns)
    if seen is not None:
        modes = _with_live(seen.events).where("event = 'mode'").select(*columns)
        rows = together(rows, modes)
    return SpecialRows.of(rows.distinct().collect())


def _in_order(
    spans: Mapping[Shard, list[Span]],
    before: Mapping[Shard, Known],
    archived: Mapping[Shard, Position],
) -> dict[Shard, list[Span]]:
    return {
        shard: Epochs(before.get(shard, ()), archived.get(shard)).sort(of_shard)
        for shard, of_shard in spans.items()
    }


@dataclass(frozen=True, slots=True)
class _Once:
    """Events without rows that are there again, and their spans.

    `doubled`: shard → such rows; `reused`: numbers that different events have; `between`: see `inside`.
    """

    events: DataFrame
    spans: Mapping[Shard, list[Span]]
    doubled: Mapping[Shard, int]
    reused: Sequence[Hole]
    between: Mapping[tuple[str, int, int], Sequence[Any]]


def _once(events: DataFrame, before: Mapping[Shard, Known]) -> _Once:
    """Leave out rows that are there again, and count them."""
    spans = read_spans(events)
    doubled: Counter[Shard] = Counter()
    if ranges := _again(before, spans):
        again, events = split(events, ranges)
        for row in again.groupBy("queue", "shard").count().collect():
            doubled[row.queue, row.shard] += row["count"]
        spans = read_spans(events)
    reused: list[Hole] = []
    broken = [span for of_shard in spans.values() for span in of_shard if not span.whole]
    if broken:
        events, more, reused = each_once(events, broken)
        doubled.update(more)
    return _Once(events, spans, doubled, reused, inside(events, broken))


def _times(
    spans: Mapping[Shard, Sequence[Span]], name: str, choose: Callable[[list[datetime]], datetime]
) -> dict[Shard, datetime]:
    """Choose from the times of this name among the spans of each shard; leave out shards without any."""
    found = {
        shard: [time for span in of_shard if (time := getattr(span, name)) is not None]
        for shard, of_shard in spans.items()
    }
    return {shard: choose(times) for shard, times in found.items() if times}


def _with_seen(
    spans: Mapping[Shard, list[Span]], before: Mapping[Shard, Known], seen: Seen | None
) -> dict[Shard, list[Span]]:
    """Put the epochs that were seen, as spans, before those of their shard."""
    found = dict(spans)
    for shard, known in before.items():
        assert seen is not None
        # Nothing of an epoch that begins was seen: what lies between is told with its first event.
        last = seen.lasts.get(shard, seen.at)
        found[shard] = [
            *(
                Span(*shard, epoch, 0, 0, stop - 1, None, last, whole=True, stored=stop - 1)
                for epoch, stop in known
                if stop
            ),
            *found.get(shard, ()),
        ]
    return found


@dataclass(frozen=True, slots=True)
class _Order:
    """The epochs of each shard in their order. `begins`, `present`: see `Record`."""

    begins: dict[Shard, Known]
    present: dict[Shard, int | None] = field(default_factory=dict)
    epochs: dict[Shard, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, before: Mapping[Shard, Known]) -> _Order:
        return cls(dict(before))

    def add(self, shard: Shard, epochs: Epochs, spans: Sequence[Span]) -> None:
        self.epochs[shard] = epochs.all(spans)
        self.begins[shard] = epochs.read(spans)
        if len(self.epochs[shard]) > 1:
            self.present[shard] = epochs.present(spans)


def _holes_of_rows(
    special: SpecialRows,
    order: _Order,
    lasts: Mapping[Shard, datetime],
    earlier: Mapping[Shard, datetime],
) -> list[Hole]:
    """The holes that rows tell of: the journal was off, was rolled back, or is gone with its queue."""
    holes: list[Hole] = []
    for shard, modes in special.modes.items():
        places = {epoch: place for place, epoch in enumerate(order.epochs.get(shard, ()))}
        modes.sort(key=partial(_place, places))
        holes += journal_off(shard, modes)
    for shard, gaps in special.back.items():
        holes += [gap.hole(shard, gap.ts) for gap in gaps]
    for shard, gaps in special.gone.items():
        since = lasts.get(shard) or earlier.get(shard)
        holes += [gap.hole(shard, since) for gap in gaps]
    return holes


def _place(places: Mapping[int, int], row: Any) -> tuple[int, int]:
    """The place of an event in the journal of its shard, by the places of epochs."""
    return places.get(row.epoch, -1), row.number


def _with_live(events: DataFrame) -> DataFrame:
    """Add the column `live`, unless it is there."""
    from pyspark.sql import functions as F

    return events if "live" in events.columns else events.withColumn("live", F.lit(False))


def _unsure(spans: Sequence[Span]) -> list[Hole]:
    """The event `unsure` of each epoch that has any, as a hole that ends with it."""
    return [
        Hole(span.queue, span.shard, span.epoch, span.unsure[0], None, None, at, "unsure")
        for span in spans
        if span.unsure is not None and (at := span.unsure[1]) is not None
    ]


def _again(before: Mapping[Shard, Known], spans: Mapping[Shard, Sequence[Span]]) -> list[Stretch]:
    """The events that were seen before: a file was archived once more. None if no epoch begins so early."""
    return [
        Stretch(*shard, epoch, stop=stop)
        for shard, known in before.items()
        for epoch, stop in known
        for span in spans.get(shard, ())
        if span.epoch == epoch and span.least < stop
    ]
