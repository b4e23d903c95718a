"""Compacts the many small files of a day into a few large ones, without Spark; readers never see both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from qworker.errors import PipelineError
from qworker.pipeline.jobs.change import Change
from qworker.pipeline.jobs.files import ROWS, open_parquet
from qworker.pipeline.jobs.lake import Day, Lake, sync

__all__ = ["Compacted", "compact", "plan"]

#: Approximate size of compacted files; several tasks share larger ones less evenly.
_FILE_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Compacted:
    """Totals: days rewritten, files before and after, their bytes, and the rows."""

    days: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0


def plan(lake: Lake, *, before: date | None = None, least: int = 2) -> list[Day]:
    """Choose the days with `least` files or more, before `before` if given."""
    return [
        day
        for day in lake.days()
        if (before is None or day.day < before) and len(day.files()) >= least
    ]


def compact(
    lake: Lake,
    days: Iterable[Day],
    *,
    on_day: Callable[[Day], None] = lambda day: None,
) -> Compacted:
    """Rewrite each day into as few files as `_FILE_BYTES` allows. The caller holds `lake.writing()`.

    Raises `PipelineError` if rows are missing afterwards; that day stays as it was.
    """
    total = Compacted()
    for day in days:
        files = day.files()
        before = sum(file.stat().st_size for file in files)
        change = Change(lake)
        staged = change.directory / day.path.relative_to(lake.root) / f"batch={change.batch}"
        rows = _rewrite(files, staged)
        written = list(staged.iterdir())
        after = sum(file.stat().st_size for file in written)
        change.commit(written, replacing=True)
        total = Compacted(
            total.days + 1,
            total.files_before + len(files),
            total.files_after + len(written),
            total.bytes_before + before,
            total.bytes_after + after,
            total.rows + rows,
        )
        on_day(day)
    return total


def _rewrite(files: list[Path], directory: Path) -> int:
    """Copy rows into new files; returns their number. Raises `PipelineError` if some are missing."""
    import pyarrow.parquet as pq

    directory.mkdir(parents=True)
    # Files of other versions may lack a column: the schema of the newest file decides, and others are cast to it.
    schema = pq.read_schema(files[-1])
    wanted = sum(pq.read_metadata(file).num_rows for file in files)
    writer: Any = None
    number, path = 0, directory
    for file in files:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(ROWS):
                if writer is None:
                    path = directory / f"part-{number:05d}.parquet"
                    writer, number = open_parquet(path, schema), number + 1
                writer.write_batch(_conformed(batch, schema), row_group_size=ROWS)
        if writer is not None and path.stat().st_size >= _FILE_BYTES:
            writer.close()
            sync(path)
            writer = None
    if writer is not None:
        writer.close()
        sync(path)
    rows: int = sum(pq.read_metadata(file).num_rows for file in directory.iterdir())
    if rows != wanted:
        raise PipelineError(
            f"{directory}: {rows} of {wanted} rows were written; nothing was changed"
        )
    return rows


def _conformed(batch: Any, schema: Any) -> Any:
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
