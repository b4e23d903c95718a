"""Writes events to Parquet files by queue and day, as a task does with the entries it reads. No Spark here.

Files have the columns of the table `journal` but for `queue`, which is in their path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.store import AnyPath, cannot_write, open_write

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FEW_VALUES", "GROWING", "ROWS", "EventFile", "event_file", "sync", "write_events"]

#: Rows of a row group: some 50 MB while they are gathered.
ROWS: Final = 262_144
#: Columns with few values, and columns that grow a little from row to row.
FEW_VALUES: Final = (
    "shard",
    "epoch",
    "event",
    "attempt",
    "task",
    "reason",
    "error_class",
    "worker",
)
GROWING: Final = (
    *("entry", "number", "age_ms"),
    *("ts", "sent_ts", "ready_ts", "delivered_ts", "started_ts"),
)
#: Columns whose least and greatest values are in the log, so that readers skip files.
_BOUNDED: Final = ("epoch", "entry", "number", "ts", "sent_ts")


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file and its contents. `missing`: events in its gaps; `rolled_back`: journals rolled back since.

    `stats`: the statistics of its columns, as Delta has them.
    """

    path: str
    queue: str
    day: str
    bytes: int
    stats: str
    events: int = 0
    gaps: int = 0
    missing: int = 0
    rolled_back: int = 0


def write_events(
    batches: Iterable[pa.RecordBatch], directory: AnyPath, *, name: str
) -> list[EventFile]:
    """Write batches of the table `journal`, each of one queue, to `queue=…/day=…/<name>.parquet`.

    Each file is on the disk, or in the store, when this returns. Raises `PipelineError` if one cannot be written; then
    there is none of them.
    """
    files: dict[AnyPath, _File] = {}
    try:
        for events in batches:
            queue = events.column("queue")[0].as_py()
            rows = events.drop_columns(["queue"])
            with _clear_errors(directory):
                for day, part in _by_day(rows):
                    path = directory / f"queue={queue}" / f"day={day}" / f"{name}.parquet"
                    if path not in files:
                        files[path] = _File.open(path, queue, day, part.schema)
                    files[path].add(part)
        with _clear_errors(directory):
            return [file.close() for file in files.values()]
    except BaseException:
        for file in files.values():
            file.discard()
        raise


@contextmanager
def _clear_errors(directory: AnyPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(directory, error, "nothing was committed") from error


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def event_file(path: Path, queue: str, day: date, **counts: int) -> EventFile:
    """Describe a file that is on the disk, by its footer."""
    import pyarrow.parquet as pq

    stats = _stats(pq.read_metadata(path))
    return EventFile(str(path), queue, day.isoformat(), os.path.getsize(path), stats, **counts)


def _stats(footer: Any) -> str:
    """The bounds of some columns. Delta has times in ms: the upper bound is rounded up."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unknown = set()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if name not in _BOUNDED:
                continue
            if found is not None and found.has_min_max:
                low[name] = min(low.get(name, found.min), found.min)
                high[name] = max(high.get(name, found.max), found.max)
            elif found is None or found.null_count != column.num_values:
                unknown.add(name)
    document = {
        "numRecords": footer.num_rows,
        "minValues": {name: _bound(value) for name, value in low.items() if name not in unknown},
        "maxValues": {
            name: _bound(value, timedelta(milliseconds=1))
            for name, value in high.items()
            if name not in unknown
        },
        "nullCount": {},
    }
    return json.dumps(document)


def _bound(value: Any, more: timedelta = timedelta()) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value + more).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class _File:
    """A file being written: rows are gathered until they fill a row group."""

    path: AnyPath
    queue: str
    day: date
    stream: Any
    writer: Any
    footer: list[Any]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    gaps: int = 0
    missing: int = 0
    rolled_back: int = 0

    @classmethod
    def open(cls, path: AnyPath, queue: str, day: date, schema: pa.Schema) -> _File:
        import pyarrow.parquet as pq

        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        stream, footer, names = open_write(path), list[Any](), set(schema.names)
        writer = pq.ParquetWriter(
            stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in FEW_VALUES if name in names],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in GROWING if name in names},
            metadata_collector=footer,
        )
        return cls(path, queue, day, stream, writer, footer)

    def add(self, rows: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        self.waiting.append(rows)
        self.rows += rows.num_rows
        gaps = rows.column("reason").filter(pc.equal(rows.column("event"), "gap")).to_pylist()
        self.gaps += len(gaps)
        back = [reason for reason in gaps if "rolled back" in reason]
        self.rolled_back += len(back)
        self.missing += sum(int(reason.split()[0]) for reason in gaps if reason not in back)
        if sum(batch.num_rows for batch in self.waiting) >= ROWS:
            self._flush()

    def close(self) -> EventFile:
        self._flush()
        self.writer.close()
        size = self.stream.tell()
        self.stream.close()
        if isinstance(self.path, Path):
            sync(self.path)
        return EventFile(
            str(self.path),
            self.queue,
            self.day.isoformat(),
            size,
            _stats(self.footer[0]),
            events=self.rows - self.gaps,
            gaps=self.gaps,
            missing=self.missing,
            rolled_back=self.rolled_back,
        )

    def discard(self) -> None:
        """Delete it after an error, as far as that is possible; a vacuum deletes the rest."""
        with suppress(OSError, ValueError, RuntimeError):
            self.writer.close()
        with suppress(OSError):
            self.stream.close()
        with suppress(OSError):
            self.path.unlink()

    def _flush(self) -> None:
        import pyarrow as pa

        if self.waiting:
            self.writer.write_table(pa.Table.from_batches(self.waiting), row_group_size=ROWS)
            self.waiting = []


def _by_day(rows: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Split rows by the day of ts; a gap without a time belongs to today."""
    import pyarrow as pa
    import pyarrow.compute as pc

    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC"))
    days = pc.coalesce(rows.column("ts"), now).cast(pa.date32())
    distinct = pc.unique(days)
    for day in distinct:
        yield day.as_py(), rows if len(distinct) == 1 else rows.filter(pc.equal(days, day))
