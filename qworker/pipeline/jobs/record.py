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
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.compositions import NOTHING_CARRIED, Carried
from qworker.pipeline.jobs.deleted import NOTHING_EARLIER, Earlier
from qworker.pipeline.jobs.epochs import Epochs, Known, read_before
from qworker.pipeline.jobs.holes import (
    Gap,
    Hole,
    Shard,
    Span,
    journal_off,
    missing,
    sends_unheard,
)
from qworker.pipeline.jobs.local import together
from qworker.pipeline.jobs.spans import Stretch, each_once, inside, read_spans, split
from qworker.pipeline.source.offsets import Offsets
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
    groups: Carried = NOTHING_CARRIED
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

    def forget(self, ranges: Sequence[Stretch]) -> None:
        """Leave out changes of the mode that were rolled back."""
        for rows in self.modes.values():
            rows[:] = [row for row in rows if not any(each.holds(row) for each in ranges)]


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
    columns = ("queue", "shard", "epoch", "number", "event", "ts", "reason", "live")
    rows = events.where("event in ('gap', 'mode')").select(*columns)
    if seen is not None:
        modes = _with_live(seen.events).where("event = 'mode'").select(*columns)
        rows = together(rows, modes)
    special = _Special.of(rows.distinct().collect())
    carried = None if seen is None else _with_live(seen.events).where("event <> 'mode'")
    archived = {split_shard_name(name): position for name, position in (ends or {}).items()}
    before = {} if seen is None else seen.begins

    def in_order(found: Mapping[Shard, list[Span]]) -> dict[Shard, list[Span]]:
        return {
            shard: Epochs(before.get(shard, ()), archived.get(shard)).sort(of_shard)
            for shard, of_shard in found.items()
        }

    if special.back:
        both = events if carried is None else together(events, carried)
        ranges = _forgotten(special.back, in_order(read_spans(both)), before)
        special.forget(ranges)
        events = split(events, ranges)[1]
        carried = None if carried is None else split(carried, ranges)[1]
    spans = read_spans(events)
    doubled: dict[Shard, int] = defaultdict(int)
    before = read_before(before, special.back)
    if ranges := _again(before, spans):
        again, events = split(events, ranges)
        for row in again.groupBy("queue", "shard").count().collect():
            doubled[row.queue, row.shard] += row["count"]
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
    firsts = {
        shard: min(times)
        for shard, of_shard in spans.items()
        if (times := [span.since for span in of_shard if span.since is not None])
    }
    reached = max(
        (
            span.stored_until
            for of_shard in spans.values()
            for span in of_shard
            if span.stored_until is not None
        ),
        default=None,
    )
    unsure = tuple(hole for of_shard in spans.values() for hole in _unsure(of_shard))
    for shard, known in before.items():
        assert seen is not None
        # Nothing of an epoch that begins was seen: what lies between is told with its first event.
        last = seen.lasts.get(shard, seen.at)
        spans[shard] = [
            *(
                Span(*shard, epoch, 0, 0, stop - 1, None, last, whole=True, stored=stop - 1)
                for epoch, stop in known
                if stop
            ),
            *spans.get(shard, ()),
        ]
    spans = in_order(spans)
    begins, present, orders = dict(before), dict[Shard, int | None](), dict[Shard, list[int]]()
    for shard in {*spans, *special.gaps, *archived}:
        of_shard, end = spans.get(shard, []), archived.get(shard)
        epochs = Epochs(before.get(shard, ()), end)
        orders[shard] = epochs.all(of_shard)
        begins[shard] = epochs.read(of_shard)
        if len(epochs.all(of_shard)) > 1:
            present[shard] = epochs.present(of_shard)
        read = [epoch for epoch, stop in epochs.known if stop]
        told = missing(shard, of_shard, special.gaps.get(shard, []), between, end, read)
        holes += earlier.left(told, of_shard)
    for shard, of_modes in special.modes.items():
        places = {epoch: place for place, epoch in enumerate(orders.get(shard, ()))}
        of_modes.sort(key=partial(_place, places))
        holes += journal_off(shard, of_modes)
    for shard, gaps in special.back.items():
        holes += [gap.hole(shard, gap.ts) for gap in gaps]
    for shard, gaps in special.gone.items():
        since = lasts.get(shard) or (None if seen is None else seen.lasts.get(shard))
        holes += [gap.hole(shard, since) for gap in gaps]
    holes.sort(key=lambda hole: (hole.queue, hole.shard, hole.epoch, hole.after))
    last_modes = (rows[-1] for rows in special.modes.values() if rows)
    return Record(
        events if carried is None else together(events, carried),
        events,
        tuple(holes),
        dict(doubled),
        [row for row in last_modes if row.reason != "all"],
        lasts,
        firsts,
        unsure,
        tuple(
            hole
            for shard, of_modes in special.modes.items()
            for hole in sends_unheard(shard, of_modes)
        ),
        begins,
        present,
        reached,
    )


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


def _forgotten(
    back: Mapping[Shard, Sequence[Gap]],
    spans: Mapping[Shard, Sequence[Span]],
    before: Mapping[Shard, Known],
) -> list[Stretch]:
    """The events that were rolled back: later in the journal than the fork, and written before that was noticed.

    `spans`: in the order of the epochs; if the clock was set back, a later one may have a smaller number.
    """
    found = []
    for shard, gaps in back.items():
        epochs = [epoch for epoch, _ in before.get(shard, ())]
        epochs += [span.epoch for span in spans.get(shard, ()) if span.epoch not in epochs]
        for gap in gaps:
            if gap.ts is None:
                continue
            if gap.epoch in epochs:
                later = epochs[epochs.index(gap.epoch) + 1 :]
            else:
                later = [epoch for epoch in epochs if epoch > gap.epoch]
            found.append(Stretch(*shard, gap.epoch, first=gap.number, until=gap.ts))
            found += [Stretch(*shard, epoch, until=gap.ts) for epoch in later]
    return found
