"""A report in increments: its sums are carried from run to run, so that each reads only what the archive got since.

    LAKE/_report/state.json                     how far it came, and the holes of the record
    LAKE/_report/figures-…/figures.parquet      the sums (`qworker.pipeline.report.sums`)
    LAKE/_report/events-…/                      events of messages that may still change

An event is counted when it is read. A message is counted when it cannot change any more: it ended an hour before the
last event. Others, and dead letters, which may be redriven, are carried as events and counted again in each run.

Carried sums are used only if they fit. All is read again, and the reason is given, if they are of another version of
qworker, of other targets, or of an archive that was recreated or restored; if files or carried sums are gone; or if
events that were counted do not count any more, because the journal was rolled back or archived twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.jobs.carrying import recent
from qworker.pipeline.jobs.days import FilesRead
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.holes import IN_RECORD, Hole
from qworker.pipeline.jobs.increment import Increment
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.lifecycle import lifecycles
from qworker.pipeline.jobs.reading import reach, read_events
from qworker.pipeline.jobs.record import Record, examine
from qworker.pipeline.jobs.store import AnyPath, cannot_write, one_line, open_write
from qworker.pipeline.report import event_counts, message_counts, runs_and_groups
from qworker.pipeline.report.document import Waiting, draw, new_sums
from qworker.pipeline.report.scope import Scope
from qworker.pipeline.report.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Carried", "Reported", "UnfitError", "fitting", "report_increment"]

#: The version of the sums: another one is not carried on.
_FORMAT: Final = 3


class UnfitError(Exception):
    """The carried sums do not fit; the text says why."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A report, and what was read for it. `since`: when the last one was made; None: all of the archive was read.

    `rebuilt`: why all was read although there was a last one.
    """

    document: dict[str, Any]
    read: FilesRead
    events: int
    since: datetime | None
    rebuilt: str | None


@dataclass(frozen=True, slots=True)
class Carried:
    """The state that the last report left, and the files that the archive got since."""

    increment: Increment
    sums: Sums
    holes: tuple[Hole, ...]
    sizes: dict[AnyPath, int]


def report_increment(
    spark: SparkSession,
    lake: Lake,
    scope: Scope,
    *,
    restart: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Reported:
    """Report on all of an archive, and read only what it got since the last report of this kind.

    `restart`: read all of it. Raises `PipelineError` if what the next report needs cannot be written.
    """
    lake = lake.pinned()
    nothing = Increment.empty(lake, "report")
    nothing.check_writable()
    if restart:
        return _report(spark, lake, scope, None, nothing, on_step)
    try:
        last = fitting(lake, scope)
        if last is None:
            return _report(spark, lake, scope, None, nothing, on_step)
        return _report(spark, lake, scope, last, last.increment, on_step)
    except UnfitError as error:
        on_step(f"all of it again, because {error}")
        return _report(spark, lake, scope, None, nothing, on_step, rebuilt=str(error))


def fitting(lake: Lake, scope: Scope) -> Carried | None:
    """Read the state that the last report left; None: there was none. Raises `UnfitError`."""
    try:
        increment = Increment.of(lake, "report")
    except ArchiveDamagedError as error:
        raise UnfitError(f"what the last report kept cannot be read ({error.file})") from error
    if increment.at is None:
        return None
    more = increment.more
    if more.get("format") != _FORMAT:
        raise UnfitError("another version of qworker made the last report")
    if more.get("table") != lake.table_id():
        raise UnfitError("the archive was recreated since the last report")
    if more.get("targets") != _targets(scope):
        raise UnfitError("the last report had other targets")
    try:
        sums = _read(increment.root / more["figures"] / "figures.parquet", more["width_s"])
        holes = tuple(map(_hole, more["holes"]))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UnfitError(
            f"the figures of the last report are not there ({one_line(error)})"
        ) from error
    try:
        increment.check_events()
        return Carried(increment, sums, holes, increment.sizes(lake))
    except PipelineError as error:
        raise UnfitError(
            f"files of the archive or of the last report are gone ({error})"
        ) from error


def _report(
    spark: SparkSession,
    lake: Lake,
    scope: Scope,
    last: Carried | None,
    increment: Increment,
    on_step: Callable[[str], None],
    *,
    rebuilt: str | None = None,
) -> Reported:
    from pyspark.sql import functions as F

    on_step("reading")
    assert lake.version is not None
    sizes = increment.sizes(lake) if last is None else last.sizes
    record = _record(spark, lake, increment, [*sizes])
    if last is not None:
        _check_fit(record)
    fresh = _real(record.fresh)
    new = new_sums(fresh, None if last is None else last.sums)
    if new is None:
        return Reported(draw(None, (), (), scope), FilesRead.of(sizes), 0, increment.at, rebuilt)
    events = new["overview"][()][0] if new["overview"] else 0
    if events:
        on_step("durations and tasks")
        event_counts.count_events(fresh, new)
    on_step("messages")
    over, moving = Sums(new.width_s), Sums(new.width_s)
    events_of_both = _real(record.events)
    rows = message_counts.reported(lifecycles(events_of_both))
    try:
        newest, has_runs = message_counts.overview(rows)
        moves = f"state <> 'ended' or {recent(newest)}"
        messages = rows.withColumn("part", F.expr(f"cast(coalesce({moves}, true) as int)"))
        message_counts.count_messages(messages, scope.targets, over, moving)
        on_step("runs and groups of calls")
        open_groups, groups = runs_and_groups.count_groups(events_of_both, over, moving)
        open_runs: runs_and_groups.Waiting = []
        if has_runs:
            open_runs = runs_and_groups.count_runs(messages, events_of_both, over, moving)
        on_step("dead letters")
        dead = message_counts.dead_letters(rows)
        before = [] if last is None else [last.sums.wider(new.width_s)]
        total = over.plus(new, *before).bounded()
        holes = _merged(() if last is None else last.holes, record.holes)
        waiting = Waiting(open_runs, open_groups)
        document = draw(total.plus(moving), dead, holes, scope, waiting)
        on_step("keeping the figures")
        figures = f"figures-{secrets.token_hex(8)}"
        _write(total, increment.root / figures)
        more = _document(lake, scope, figures, total, holes)
        increment.keep(
            messages.where("part = 1"), record, version=lake.version, groups=groups, more=more
        )
    finally:
        rows.unpersist()
    return Reported(document, FilesRead.of(sizes), events, increment.at, rebuilt)


def _record(
    spark: SparkSession, lake: Lake, increment: Increment, files: Sequence[AnyPath]
) -> Record:
    """Examine these files of an archive beside what the last report carried."""
    seen = increment.seen(spark)
    ends, earlier = reach(spark, lake, seen)
    beside = 0 if seen is None else seen.rows
    journal = read_events(spark, lake=lake, files=files, beside=beside)
    return examine(journal, ends, earlier, seen)


def _real(events: DataFrame) -> DataFrame:
    return events.where("event not in ('gap', 'mode')")


def _check_fit(record: Record) -> None:
    """Raise `UnfitError` if events that were counted count no more, or came again."""
    for hole in record.holes:
        if hole.why in IN_RECORD:
            raise UnfitError(f"events of {hole.queue} no longer count: {hole.why}")
    for queue, _ in record.doubled:
        raise UnfitError(f"events of {queue} were archived again")


def _merged(before: Iterable[Hole], now: Iterable[Hole]) -> tuple[Hole, ...]:
    """All holes; one that was open may have ended meanwhile."""
    found = {
        (hole.queue, hole.shard, hole.epoch, hole.after, hole.why): hole for hole in (*before, *now)
    }
    return tuple(found[key] for key in sorted(found))


def _document(
    lake: Lake, scope: Scope, figures: str, total: Sums, holes: Iterable[Hole]
) -> dict[str, Any]:
    """The state that `fitting` reads, but for the increment's own."""
    return {
        "format": _FORMAT,
        "table": lake.table_id(),
        "targets": _targets(scope),
        "figures": figures,
        "width_s": total.width_s,
        "holes": [_stored(hole) for hole in holes],
    }


def _targets(scope: Scope) -> list[Any]:
    """The targets as JSON has them: they decide what is counted as within."""
    return [dict(sorted(scope.targets_ms.items())), scope.default_target_ms]


def _stored(hole: Hole) -> list[Any]:
    times = [None if time is None else time.isoformat() for time in (hole.since, hole.until)]
    return [hole.queue, hole.shard, hole.epoch, hole.after, hole.missing, *times, hole.why]


def _hole(fields: list[Any]) -> Hole:
    queue, shard, epoch, after, missing, since, until, why = fields
    times = [None if time is None else datetime.fromisoformat(time) for time in (since, until)]
    return Hole(queue, shard, epoch, after, missing, times[0], times[1], why)


def _read(file: AnyPath, width_s: int) -> Sums:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return Sums.of_arrow(pq.read_table(pa.BufferReader(file.read_bytes())), width_s)


def _write(sums: Sums, directory: AnyPath) -> None:
    """Write sums to the disk or the store. Raises `PipelineError`."""
    import pyarrow.parquet as pq

    file = directory / "figures.parquet"
    try:
        if isinstance(directory, Path):
            directory.mkdir(parents=True)
        with open_write(file) as stream:
            pq.write_table(sums.to_arrow(), stream, compression="zstd")
        if isinstance(file, Path):
            sync(file)
            sync(file.parent)
    except OSError as error:
        raise cannot_write(file, error, "the next report begins where this one did") from error
