"""Small tables of the driver as DataFrames.

From Arrow: Spark hands rows of Python to a Python process for each job that reads them, which takes longer than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["local_frame"]


def local_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: pa.Schema) -> DataFrame:
    """Make a DataFrame of rows, whose values are in the order of the schema; times need a zone."""
    import pyarrow as pa

    given = list(rows)
    columns = [list(column) for column in zip(*given, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))
