"""Archives the journal to a Delta table, each event once, whichever process is killed on the way.

Batch by batch: the driver plans the entries of a batch, each task reads a range of them and writes files, and the
driver commits these together with the offsets after them (`qworker.pipeline.jobs.lake`). No event passes through the
JVM. Columns are those of the table `journal`, and the partition columns `queue` and `day` (DATE, of ts in UTC).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from qworker.pipeline.failures import clear_errors, marked_errors
from qworker.pipeline.jobs.archived import continued, ends_of_rows, read_archive
from qworker.pipeline.jobs.compact import compact, expire, plan, vacuum
from qworker.pipeline.jobs.files import EventFile, write_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.store import AnyPath
from qworker.pipeline.source.offsets import Range, dump, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    from qworker.pipeline.source.stream import JournalStreamReader

__all__ = ["Archived", "Archiver", "archive", "read_archive"]

#: Entries of a batch that the driver writes itself, at most; an entry is of a call.
_FEW_ENTRIES: Final = 1000
_FILE: Final = (
    "path STRING, queue STRING, day STRING, bytes BIGINT, stats STRING, events BIGINT, gaps BIGINT, missing BIGINT, "
    "rolled_back BIGINT"
)


@dataclass(frozen=True, slots=True)
class Archived:
    """Totals of an archiver so far.

    `missing`: events that were trimmed before they were read; `rolled_back`: journals that Redis has an older copy of
    since they were read; `expired_days`: days of queues that were deleted because of their age.
    """

    batches: int = 0
    entries: int = 0
    events: int = 0
    gaps: int = 0
    missing: int = 0
    seconds: float = 0.0
    compacted_days: int = 0
    rolled_back: int = 0
    expired_days: int = 0

    @property
    def events_per_s(self) -> float:
        """Events archived per second."""
        return self.events / self.seconds if self.seconds > 0 else 0.0


class Archiver:
    """Archives a batch at a time. Of two that write into one archive, one fails.

    `source`: options of the data source; `maxEntriesPerTrigger` bounds a batch, `readerName` names the progress that
    is noted in Redis. Begins where the archive ends.
    """

    def __init__(self, spark: SparkSession, lake: Lake, source: Mapping[str, str]) -> None:
        from qworker.pipeline.source.options import ReadOptions
        from qworker.pipeline.source.stream import JournalStreamReader

        self._spark, self._lake = spark, lake
        given = dict(source)
        lake.create(ReadOptions.of(given).namespace)
        now = lake.pinned()
        self._last, begun = now.last(), now.offsets()
        if begun is None and (ends := ends_of_rows(spark, now)):
            given["startingOffsets"] = json.dumps(dump(ends))
        options = ReadOptions.of(given)
        self._options = options
        #: Number of entries at which a batch is full; 0: no limit.
        self.limit = 1 if options.max_events_per_trigger else options.max_entries_per_trigger
        self._reader = JournalStreamReader(options)
        self._reached = self._reader.initialOffset() if begun is None else begun

    def end_here(self) -> None:
        """Leave entries that are written from now on to the next run."""
        self._reader.prepareForTriggerAvailableNow()

    def archive_batch(self) -> Archived | None:
        """Archive the next batch and return its totals; None if there was nothing to archive.

        A journal that was rolled back is read from the point where it and the archive differ; a row `gap` records it.
        Raises `JournalRolledBackError` instead if `failOnDataLoss` is set, the `QworkerError` that ended a task,
        `PipelineError` if another archiver has written since, or Spark's error.
        """
        from qworker.pipeline.source.stream import RangePartition

        begun = time.monotonic()
        start, back = self._reached, list[Range]()
        if not self._options.fail_on_data_loss:
            after = continued(self._spark, self._lake, self._options, read(self._reached))
            back = after.back
            start = dump(after.positions) if back else start
        reached = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if reached == self._reached:
            return None
        parts: list[InputPartition] = [
            RangePartition(part) for part in back if part.forgotten is not None
        ]
        parts += self._reader.partitions(start, reached)
        files = _write(self._spark, self._reader, parts, self._lake.root)
        self._last = self._lake.commit(files, after=self._last, offsets=reached)
        self._reached = reached
        self._reader.commit(reached)
        return Archived(
            1,
            sum(part.value.stop - part.value.begin for part in parts),
            sum(file.events for file in files),
            sum(file.gaps for file in files),
            sum(file.missing for file in files),
            time.monotonic() - begun,
            rolled_back=sum(file.rolled_back for file in files),
        )


def archive(
    spark: SparkSession,
    lake: Lake,
    source: Mapping[str, str],
    *,
    once: bool,
    every_s: float = 10.0,
    keep_ms: int | None = None,
    on_batch: Callable[[Archived], None] = lambda done: None,
    stopped: Callable[[float], bool] = lambda wait_s: False,
) -> Archived:
    """Write the journal into the archive.

    `once`: stop at the present end of the journal. Else read every `every_s` seconds, until `stopped(seconds)`, which
    waits that long, returns true; and at midnight (UTC) compact the days that are over. Days that ended more than
    `keep_ms` ago are deleted at the start and at midnight. `on_batch` gets the totals after each batch.
    """
    archiver = Archiver(spark, lake, source)
    if once:
        archiver.end_here()
    begun, total, compacted = time.monotonic(), Archived(), _today()
    if keep_ms is not None:
        total = replace(total, expired_days=expire(lake, keep_ms))
    while not stopped(0):
        read, done = time.monotonic(), archiver.archive_batch()
        if done is not None:
            total = replace(
                total,
                batches=total.batches + 1,
                entries=total.entries + done.entries,
                events=total.events + done.events,
                gaps=total.gaps + done.gaps,
                missing=total.missing + done.missing,
                seconds=time.monotonic() - begun,
                rolled_back=total.rolled_back + done.rolled_back,
            )
            on_batch(total)
        if once and done is None:
            break
        if once or (done is not None and 0 < archiver.limit <= done.entries):
            continue  # There is more.
        if _today() > compacted:
            compacted = _today()
            expired = 0 if keep_ms is None else expire(lake, keep_ms)
            days = compact(lake, plan(lake, before=compacted)).days
            vacuum(lake)
            total = replace(
                total,
                compacted_days=total.compacted_days + days,
                expired_days=total.expired_days + expired,
            )
        stopped(max(0.0, every_s - (time.monotonic() - read)))
    return replace(total, seconds=time.monotonic() - begun)


def _write(
    spark: SparkSession, reader: JournalStreamReader, parts: list[InputPartition], root: AnyPath
) -> list[EventFile]:
    """Write the events of each partition in its own task; returns the files of the attempts that succeeded.

    Few entries are written here: to start tasks would take longer.
    """
    if sum(part.value.stop - part.value.begin for part in parts) <= _FEW_ENTRIES:
        with clear_errors():
            return [
                file
                for part in parts
                for file in write_events(reader.read(part), root, name=_name())
            ]

    names = [column.split()[0] for column in _FILE.split(", ")]

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch_of_ids in rows:
            for number in batch_of_ids.column("id").to_pylist():
                with marked_errors():
                    files = write_events(reader.read(parts[number]), root, name=_name())
                if files:
                    columns = zip(*map(astuple, files), strict=True)
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(column) for column in columns], names=names
                    )

    tasks = spark.range(0, len(parts), numPartitions=len(parts))
    with clear_errors():
        return [EventFile(*row) for row in tasks.mapInArrow(write, _FILE).collect()]


def _name() -> str:
    """Every attempt has its own files; those that no commit names are deleted by a vacuum."""
    return f"part-{secrets.token_hex(16)}"


def _today() -> date:
    return datetime.now(UTC).date()
