"""Reads and writes Parquet files of an object store through Python: Spark itself would need jars for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.failures import clear_errors, marked_errors
from qworker.pipeline.jobs.store import ObjectPath, Place, cannot_write, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["read_objects", "write_objects", "written_objects"]

#: Files of a task, at most.
_FILES: Final = 32
_ROWS: Final = 65_536


def read_objects(spark: SparkSession, files: Sequence[Place], schema: StructType) -> DataFrame:
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
                    assert isinstance(file, ObjectPath)
                    with marked_errors():
                        yield from _batches(file, columns)

    return spark.range(0, tasks, numPartitions=tasks).mapInArrow(read, schema)


def write_objects(frame: DataFrame, directory: ObjectPath) -> None:
    """Write rows under a prefix, a file for each partition; `_SUCCESS` names those that count.

    Raises `PipelineError` if the store does not take them.
    """

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Every attempt of a task has its own file.
        file, writer = directory / f"part-{secrets.token_hex(16)}.parquet", None
        with marked_errors():
            try:
                for batch in filter(len, rows):
                    if writer is None:
                        stream = file.open_write()
                        writer = pq.ParquetWriter(stream, batch.schema, compression="zstd")
                    writer.write_batch(batch)
                if writer is not None:
                    writer.close()
                    stream.close()
                    yield pa.RecordBatch.from_pydict({"name": [file.name]})
            except OSError as error:
                raise cannot_write(directory, error, "nothing was kept") from error

    with clear_errors():
        names = [row.name for row in frame.mapInArrow(write, "name STRING").collect()]
    try:
        (directory / "_SUCCESS").write_text("\n".join(names))
    except OSError as error:
        raise cannot_write(directory, error, "nothing was kept") from error


def written_objects(directory: ObjectPath) -> list[Place]:
    """List the files that `write_objects` has written."""
    return [directory / name for name in (directory / "_SUCCESS").read_text().split()]


def _batches(file: ObjectPath, columns: Any) -> Iterator[pa.RecordBatch]:
    """Read a file, with the columns of its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    named: dict[str, Any] = dict(
        part.split("=", 1) for part in file.key.split("/")[:-1] if "=" in part
    )
    if "day" in named:
        named["day"] = date.fromisoformat(named["day"])
    try:
        with file.open_read() as stream, pq.ParquetFile(stream) as stored:
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
