"""The events that an archive has, and where to continue in the journals that they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qworker.errors import ArchiveDamagedError
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.local import few_rows, table_frame
from qworker.pipeline.jobs.objects import FEW_FILES, read_few, read_objects
from qworker.pipeline.jobs.store import AnyPath, absent
from qworker.pipeline.session import session_of_few
from qworker.pipeline.source.journal import Journals, Known
from qworker.pipeline.source.offsets import Offsets, Position, Range
from qworker.pipeline.source.reading import Reader
from qworker.wire.names import shard_name, split_shard_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from qworker.pipeline.source.options import ReadOptions

__all__ = ["Continued", "continued", "ends_of_rows", "few_events", "read_archive"]


@dataclass(frozen=True, slots=True)
class Continued:
    """Where to continue after an archive. `positions`: the first entry of each journal that is not in it.

    `back`: a range for each journal that was rolled back since; `gone`: the names of those that Redis does not have.
    """

    positions: dict[str, Position]
    back: list[Range]
    gone: list[str]


def read_archive(
    spark: SparkSession,
    lake: Lake,
    files: Sequence[AnyPath] | None = None,
    *,
    in_part: bool = False,
) -> DataFrame:
    """Read the events of an archive: the columns of `journal`, then `day`.

    `files`: of these files only. Raises `ArchiveDamagedError` for a file that is missing; with `in_part` it is left
    out, for readers that compare the numbers of the events.
    """
    named = lake.files() if files is None else files
    gone = absent(named)
    if gone and not in_part:
        raise ArchiveDamagedError(min(map(str, gone)), "the file is missing")
    there = [file for file in named if file not in gone]
    if not there:
        return spark.createDataFrame([], _schema())
    if lake.in_store:
        return read_objects(spark, there, _schema())
    reader = spark.read.schema(_schema()).option("basePath", str(lake.root))
    return reader.parquet(*map(str, there))


def few_events(files: Sequence[AnyPath], most: int) -> pa.Table | None:
    """Read the events of these files of an archive in the driver, as `read_archive` does with `in_part`.

    None if there are more than `most`, or in many files. Raises `ArchiveDamagedError` for a file that is not whole.
    """
    if len(files) > FEW_FILES or most < 0:
        return None
    gone = absent(files)
    return read_few([file for file in files if file not in gone], _schema(), most)


def continued(spark: SparkSession, lake: Lake, options: ReadOptions, begun: Offsets) -> Continued:
    """Find where to continue in journals that were archived up to `begun`, and those rolled back or gone since."""
    from qworker.pipeline.source.stream import forgotten

    server, positions = options.server(), dict(begun)
    ranges = []
    with Reader(server) as reader:
        journals = Journals(reader, options.namespace, sorted(begun))
        latest = journals.latest()
        for queue in journals.rolled_back(begun, latest):
            known = _entries(spark, lake, queue)
            fork = journals.fork(queue, known)
            positions[queue] = fork
            back = forgotten(journals, queue, begun[queue], fork)
            # An epoch that the archive does not have is another journal: the queue was removed and made again.
            same = any(epoch == fork.epoch for epoch, _ in known)
            ranges.append(back if same else replace(back, forgotten=None))
    gone = [name for name, position in begun.items() if position.entry and name not in latest]
    return Continued(positions, ranges, gone)


def _entries(spark: SparkSession, lake: Lake, shard: str) -> Known:
    """Read which entries of a journal are in the archive: (epoch, entry) → its first number, events and time in ms."""
    from pyspark.sql import functions as F

    queue, number = split_shard_name(shard)
    rows = (
        read_archive(spark, lake, in_part=True)
        .where((F.col("queue") == queue) & (F.col("shard") == number) & (F.col("event") != "gap"))
        .select("epoch", "entry", "number", F.unix_millis("ts").alias("ms"))
        .distinct()
        .groupBy("epoch", "entry", "ms")
        .agg(F.min("number").alias("number"), F.count(F.lit(1)).alias("events"))
        # After an earlier roll back an entry appears twice: the later one counts.
        .groupBy("epoch", "entry")
        .agg(F.max_by(F.struct("number", "events", "ms"), "ms").alias("last"))
    )
    return {
        (row.epoch, row.entry): (row.last.number, row.last.events, row.last.ms)
        for row in rows.collect()
    }


def ends_of_rows(spark: SparkSession, lake: Lake) -> dict[str, Position]:
    """Read from the rows of the archive where to continue in the journal of each queue and shard."""
    from pyspark.sql import functions as F

    last = F.max(F.struct("epoch", "entry", "number")).alias("last")
    table = few_events(files := lake.files(), few_rows(spark))
    if table is not None:
        events = table_frame(session_of_few(spark), table)
    else:
        events = read_archive(spark, lake, files, in_part=True)
    return {
        shard_name(row.queue, row.shard): Position(
            row.last.epoch, row.last.entry + 1, row.last.number + 1
        )
        for row in events.where("event <> 'gap'").groupBy("queue", "shard").agg(last).collect()
    }


def _schema() -> StructType:
    """The columns of the files, and those that are in their paths."""
    from pyspark.sql import types as T

    from qworker.pipeline.source.schemas import struct_of

    columns = [field for field in struct_of("journal").fields if field.name != "queue"]
    return T.StructType(
        [
            *columns,
            T.StructField("queue", T.StringType()),
            T.StructField("day", T.DateType()),
        ]
    )
