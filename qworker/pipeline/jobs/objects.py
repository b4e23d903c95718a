"""Reads Parquet files of an object store through Python, as Spark itself would need jars for it; and writes rows.

Rows are written through Python to directories too: an error names the file, and each file is on the disk at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.failures import clear_errors, marked_errors
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.local import of_few
from qworker.pipeline.jobs.store import (
    AnyPath,
    ObjectPath,
    absent,
    cannot_write,
    one_line,
    open_read,
    open_write,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "FEW_FILES",
    "read_few",
    "read_objects",
    "read_written",
    "rows_written",
    "write_rows",
    "written_whole",
]

#: Files of a task, at most.
_FILES: Final = 32
#: Files that the driver reads itself, at most.
FEW_FILES: Final = 256
_ROWS: Final = 65_536


def read_objects(spark: SparkSession, files: Sequence[AnyPath], schema: StructType) -> DataFrame:
    """Read files with these columns; `queue` and `day` are those of the path. Each use reads them again.

    Raises `ArchiveDamagedError` in the task for a file that is not there or not whole.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if not files:
        return spark.createDataFrame([], schema)
    columns = to_arrow_schema(schema, timezone="UTC")
    tasks = min(
        len(files), max(2 * spark.sparkContext.defaultParallelism, -(-len(files) // _FILES))
    )
    shares = [list(files[first::tasks]) for first in range(tasks)]

    def read(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for number in batch.column("id").to_pylist():
                for file in shares[number]:
                    with marked_errors():
                        yield from _batches(file, columns)

    return spark.range(0, tasks, numPartitions=tasks).mapInArrow(read, schema)


def read_few(files: Sequence[AnyPath], schema: StructType, most: int) -> pa.Table | None:
    """Read files of few rows in the driver, with these columns; None if there are more than `most`.

    Raises `ArchiveDamagedError` for a file that is not there or not whole.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    columns, batches, rows = to_arrow_schema(schema, timezone="UTC"), [], 0
    for file in files:
        for batch in _batches(file, columns):
            rows += len(batch)
            if rows > most:
                return None
            batches.append(batch)
    return pa.Table.from_batches(batches, columns)


def write_rows(frame: DataFrame, directory: AnyPath) -> None:
    """Write rows to a new directory or prefix, a file for each partition; `_SUCCESS` names those that count.

    Raises `PipelineError` if they cannot be written.
    """

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Every attempt of a task has its own file.
        file = directory / f"part-{secrets.token_hex(16)}.parquet"
        writer: Any = None
        stream: Any = None
        with marked_errors():
            try:
                for batch in filter(len, rows):
                    if writer is None:
                        stream = open_write(file)
                        writer = pq.ParquetWriter(stream, batch.schema, compression="zstd")
                    writer.write_batch(batch)
                if writer is not None:
                    writer.close()
                    stream.close()
                    if isinstance(file, Path):
                        sync(file)
                    yield pa.RecordBatch.from_pydict({"name": [file.name]})
            except OSError as error:
                # The driver lives on.
                for opened in filter(None, (writer, stream)):
                    with suppress(OSError, ValueError, RuntimeError):
                        opened.close()
                raise cannot_write(file, error, "nothing was kept") from error

    try:
        if isinstance(directory, Path):
            directory.mkdir(parents=True)
        with clear_errors():
            if of_few(frame):
                files = write(iter(frame.toArrow().to_batches()))
                names = [name for batch in files for name in batch.column("name").to_pylist()]
            else:
                names = [row.name for row in frame.mapInArrow(write, "name STRING").collect()]
        list_file = directory / "_SUCCESS"
        if isinstance(list_file, ObjectPath):
            list_file.write_text("\n".join(names))
            return
        list_file.write_text("\n".join(names), encoding="utf-8")
        sync(list_file)
        sync(list_file.parent)
    except OSError as error:
        raise cannot_write(directory, error, "nothing was kept") from error


def written_whole(directory: AnyPath) -> bool:
    """Whether all is there that `write_rows` has written."""
    try:
        return not absent(_named(directory))
    except FileNotFoundError:
        return False


def read_written(spark: SparkSession, directory: AnyPath, schema: StructType) -> DataFrame:
    """Read what `write_rows` has written, with these columns. Raises `FileNotFoundError` if it was not whole."""
    files = _named(directory)
    if isinstance(directory, ObjectPath):
        return read_objects(spark, files, schema)
    if not files:
        # Earlier versions wrote through Spark, which names no files; or there were no rows.
        files = [*directory.glob("*.parquet")]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*map(str, files))


def rows_written(directory: AnyPath, schema: StructType, most: int) -> pa.Table | None:
    """Read what `write_rows` has written in the driver, with these columns; None if there are more than `most` rows.

    Raises `FileNotFoundError` if it was not whole.
    """
    files = _named(directory)
    # Without names there were no rows, or an earlier version wrote through Spark.
    if not files and isinstance(directory, Path) and any(directory.glob("*.parquet")):
        return None
    return None if len(files) > FEW_FILES else read_few(files, schema, most)


def _named(directory: AnyPath) -> list[AnyPath]:
    """List the files that count. Raises `FileNotFoundError`."""
    marker = directory / "_SUCCESS"
    text = marker.read_text(encoding="utf-8") if isinstance(marker, Path) else marker.read_text()
    return [directory / name for name in text.split()]


def _batches(file: AnyPath, columns: Any) -> Iterator[pa.RecordBatch]:
    """Read a file, with the columns of its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folders = file.parts if isinstance(file, Path) else file.key.split("/")
    named: dict[str, Any] = dict(part.split("=", 1) for part in folders[:-1] if "=" in part)
    if "day" in named:
        named["day"] = date.fromisoformat(named["day"])
    try:
        with open_read(file) as stream, pq.ParquetFile(stream) as stored:
            there = set(stored.schema_arrow.names)
            wanted = [name for name in columns.names if name in there]
            for batch in stored.iter_batches(_ROWS, columns=wanted):
                arrays = [
                    batch.column(column.name).cast(column.type)
                    if column.name in there
                    else pa.repeat(pa.scalar(named.get(column.name), column.type), batch.num_rows)
                    for column in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=columns)
    except FileNotFoundError as error:
        raise ArchiveDamagedError(str(file), "the file is missing") from error
    except pa.ArrowInvalid as error:
        raise ArchiveDamagedError(
            str(file), f"not a whole Parquet file ({one_line(error)})"
        ) from error
    except OSError as error:
        raise PipelineError(f"{file} cannot be read ({one_line(error)})") from error
