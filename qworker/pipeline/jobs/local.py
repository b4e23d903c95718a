"""Tables of the driver as DataFrames, and jobs on few rows, which are worked on as such tables.

From Arrow: Spark hands rows of Python to a Python process for each job that reads them, which takes longer than that.

A job on few rows reads its files once, in the driver, and keeps intermediate rows there: then a query is one task. Its
frames belong to a session of their own (`session_of_few`), and so does all that is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError
from qworker.pipeline.session import FEW

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["few_rows", "kept", "local_frame", "of_few", "table_frame", "together"]

#: The setting of a session: how many events are few; 0: none are.
_FEW_ROWS: Final = "spark.qworker.fewRows"
_DEFAULT: Final = "10000"


def few_rows(spark: SparkSession) -> int:
    """Return how many events count as few. Raises `InvalidOptionError`."""
    given = spark.conf.get(_FEW_ROWS, _DEFAULT) or _DEFAULT
    if not given.isdecimal():
        raise InvalidOptionError(
            _FEW_ROWS,
            f"{given!r} is not a number of events",
            "write a whole number; 0 turns it off",
        )
    return int(given)


def of_few(frame: DataFrame) -> bool:
    """Whether a frame belongs to a job on few rows."""
    return frame.sparkSession.conf.get(FEW, "false") == "true"


def local_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: pa.Schema) -> DataFrame:
    """Make a DataFrame of rows, whose values are in the order of the schema; times need a zone."""
    import pyarrow as pa

    given = list(rows)
    columns = [list(column) for column in zip(*given, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return table_frame(spark, pa.Table.from_arrays(arrays, schema=schema))


def table_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame of a table; one partition in the session of few rows."""
    return _one_task(spark.createDataFrame(table))


def together(one: DataFrame, other: DataFrame) -> DataFrame:
    """The rows of both, which have the same columns; one partition in the session of few rows."""
    return _one_task(one.unionByName(other))


def kept(frame: DataFrame) -> DataFrame:
    """Keep rows that are read several times: on the disk, few ones in the driver. Unpersist them."""
    from pyspark import StorageLevel

    if of_few(frame):
        return table_frame(frame.sparkSession, frame.toArrow())
    return frame.persist(StorageLevel.DISK_ONLY)


def _one_task(frame: DataFrame) -> DataFrame:
    # Spark knows then that rows of one key are in one partition: it needs no exchange.
    return frame.coalesce(1) if of_few(frame) else frame
