"""The journal as Spark reads it: a batch between two positions, or a stream from checkpoint to checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from qworker.errors import JournalRolledBackError, QworkerError
from qworker.pipeline.failures import marked_errors
from qworker.pipeline.source import offsets
from qworker.pipeline.source.journal import Journals, find_queues
from qworker.pipeline.source.offsets import Forgotten, Offsets, Position, Range
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.reading import Reader
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JournalReader", "JournalStreamReader", "RangePartition", "forgotten"]

_log = structlog.get_logger(__name__)


@dataclass
class RangePartition(InputPartition):
    """A range of entries, for one task."""

    value: Range


@dataclass(frozen=True, slots=True)
class _Source:
    """The common part of both readers, in a form that Spark sends to the tasks."""

    options: ReadOptions
    server: ServerURL

    @contextmanager
    def journals(self, also: Offsets | None = None) -> Iterator[Journals]:
        """Open the journals of the queues that the options name, and of those in `also`."""
        with Reader(self.server) as reader:
            names = find_queues(reader, self.options.namespace, self.options.queues)
            yield Journals(reader, self.options.namespace, sorted({*names, *(also or {})}))

    def start(self, journals: Journals) -> dict[str, Position]:
        """Resolve the start of a read to positions."""
        options = self.options
        if options.starting_timestamp is not None:
            return journals.at_time(options.starting_timestamp)
        if options.starting_offsets == "latest":
            return journals.latest()
        earliest = journals.earliest()
        if isinstance(options.starting_offsets, Mapping):
            return earliest | dict(options.starting_offsets)
        return earliest

    def end(self, journals: Journals) -> dict[str, Position]:
        """Resolve the end of a batch read: at most the end of the journal."""
        options, latest = self.options, journals.latest()
        wanted: Offsets = {}
        if options.ending_timestamp is not None:
            wanted = journals.at_time(options.ending_timestamp)
        elif isinstance(options.ending_offsets, Mapping):
            wanted = options.ending_offsets
        return {
            queue: min(wanted.get(queue, last), last, key=lambda position: position.key)
            for queue, last in latest.items()
        }

    def plan(self, journals: Journals, start: Offsets, end: Offsets) -> list[InputPartition]:
        parts = self.options.min_partitions or os.cpu_count() or 1
        return [RangePartition(part) for part in journals.plan(start, end, parts)]

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        from qworker.pipeline.source.scanning import scan

        keys = QueueKeys(self.options.namespace, part.queue)
        with marked_errors(), Reader(self.server) as reader:
            yield from scan(
                reader,
                keys.journal,
                part,
                fetch=self.options.fetch_size,
                fail_on_loss=self.options.fail_on_data_loss,
            )


class JournalReader(DataSourceReader):
    """Reads the journal from one position to another, both fixed when the read is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._source = _Source(options, options.server())

    def partitions(self) -> list[InputPartition]:
        """Plan a partition per range of entries; an empty one if there are no entries."""
        with marked_errors(), self._source.journals() as journals:
            start, end = self._source.start(journals), self._source.end(journals)
            planned = self._source.plan(journals, start, end)
        return planned or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        if partition.value is not None:
            yield from self._source.read(partition.value)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the journal as a stream. Offsets are positions by queue; queues may come and go.

    Spark keeps one of these in a process beside the driver, for planning, and sends copies to the tasks.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Take checked options. Raises `InvalidOptionError` for options that a stream does not support."""
        options.check_stream()
        self._source = _Source(options, options.server())
        self._initial: dict[str, Any] | None = None
        self._target: dict[str, Position] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  names are Spark's
        """Resolve the start of a new query; every call returns the same, even if the journal grows."""
        if self._initial is None:
            with marked_errors(), self._source.journals() as journals:
                self._initial = offsets.dump(self._source.start(journals))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxEventsPerTrigger`, or `maxEntriesPerTrigger`: then Spark's rows are entries here."""
        options = self._source.options
        most = options.max_events_per_trigger or options.max_entries_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a run that stops at the present end of the journal."""
        with marked_errors(), self._source.journals() as journals:
            self._target = journals.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: at most `limit` entries (or events) after its start.

        Raises `JournalRolledBackError` if `failOnDataLoss` is set and the journal is not the one that was read.
        """
        begun = offsets.read(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with marked_errors(), self._source.journals() as journals:
            latest = journals.latest()
            back = journals.rolled_back(begun, latest)
            for queue in back:
                self._report_loss(queue, begun[queue], latest[queue])
            known = _without(begun, back)
            events = self._source.options.max_events_per_trigger > 0
            reached = journals.advance(known, self._ends(known, latest), most, events=events)
            return offsets.dump(journals.marked(reached, known))

    def _ends(self, begun: Offsets, latest: Offsets) -> dict[str, Position]:
        """Return how far each queue may be read: not beyond the target of a run that stops, and not backwards."""
        ends = {}
        for queue, last in latest.items():
            end = last
            if self._target is not None:
                if queue not in self._target:
                    continue
                end = min(last, self._target[queue], key=lambda position: position.key)
            start = begun.get(queue)
            if start is not None and end.key < start.key:
                end = start  # Read beyond the target.
            # Events that were shed since are read once there is an entry after them.
            ends[queue] = start if start is not None and end.key == start.key else end
        return ends

    def _report_loss(self, queue: str, start: Position, end: Position) -> None:
        """Report a journal that is not the one that was read: the server came back with older data."""
        if self._source.options.fail_on_data_loss:
            raise JournalRolledBackError(queue, start.epoch, start.entry, end.epoch, end.entry)
        _log.warning("journal_rolled_back", queue=queue, read=start.key, stored=end.key)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end of the journal, for the progress of the query."""
        with marked_errors(), self._source.journals() as journals:
            return offsets.dump(journals.latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the partitions of a batch; a repeated batch has the same entries."""
        begun, reached = offsets.read(start), offsets.read(end)
        with marked_errors(), self._source.journals(reached) as journals:
            back = journals.rolled_back(begun, journals.latest())
            return [
                *(RangePartition(forgotten(journals, queue, begun[queue])) for queue in back),
                *self._source.plan(journals, _without(begun, back), reached),
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        yield from self._source.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Note the progress under `readerName`. Spark calls this a batch late, and never after the last one."""
        name = self._source.options.reader_name
        if name is None:
            return
        reached = offsets.read(end)
        try:
            with self._source.journals(reached) as journals:
                journals.note_progress(name, reached)
        except QworkerError as error:
            # Advisory: the batch is done, and the checkpoint is what counts.
            _log.warning("reader_progress_not_noted", reader=name, reason=str(error))


def forgotten(
    journals: Journals, queue: str, read: Position, fork: Position | None = None
) -> Range:
    """Make the range of entries from `fork` up to `read`, which were read and are no longer in Redis.

    Without a fork it is unknown where the journal that was read and the present one differ.
    """
    at = fork or Position(read.epoch, read.entry, read.event)
    events = entries = None
    if fork is not None and fork.epoch == read.epoch:
        entries = max(0, read.entry - fork.entry)
        if None not in (read.event, fork.event):
            events = max(0, (read.event or 0) - (fork.event or 0))
    lost = Forgotten(events, entries, journals.first_ms(queue, at))
    return Range(queue, at.epoch, at.entry, at.entry, at.event, at.event, at.entry, forgotten=lost)


def _without(begun: Offsets, back: list[str]) -> dict[str, Position]:
    """Leave out queues whose journal was rolled back: they are read from their first stored entry on."""
    return {queue: position for queue, position in begun.items() if queue not in back}
