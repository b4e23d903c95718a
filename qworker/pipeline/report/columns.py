"""Columns of the tables that Spark counts for a report, and their rows, read in one job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from qworker.pipeline.report.sums import BINS_PER_DECADE, TABLES, Key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["bin_of", "bucket", "count_if", "microseconds", "rows_of"]


def rows_of(
    frames: Mapping[str, DataFrame], *before: str
) -> Iterator[tuple[str, Key, Sequence[int]]]:
    """Read the rows of tables in one job: name, key behind some other columns, and values."""
    from pyspark.sql import functions as F

    def alike(name: str, frame: DataFrame) -> DataFrame:
        table = TABLES[name]
        # As JSON, because keys of different tables have different types.
        key = F.to_json(F.struct(*before, *table.keys), {"ignoreNullFields": "false"})
        values = F.array(
            *(F.coalesce(F.col(each), F.lit(0)).cast("bigint") for each in table.values)
        )
        return frame.select(F.lit(name).alias("name"), key.alias("key"), values.alias("values"))

    union = reduce(
        lambda one, other: one.unionByName(other), (alike(*each) for each in frames.items())
    )
    for row in union.collect():
        yield row.name, tuple(json.loads(row.key).values()), row["values"]


def bucket(column: str, width_s: int) -> Column:
    """The number of the bucket of `width_s` seconds in which a timestamp lies, counted from 1970."""
    from pyspark.sql import functions as F

    return F.floor(F.unix_micros(column) / (width_s * 1_000_000))


def microseconds(column: str) -> Column:
    """Milliseconds as whole microseconds: their sum is the same in any order. Null for what is not a number."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast(round({column} * 1000) as bigint)")


def bin_of(us: Column) -> Column:
    """The bin of a duration in µs, which begins at 10 ^ (bin / BINS_PER_DECADE) ms; below 1 µs it is that of 1 µs."""
    from pyspark.sql import functions as F

    return F.floor(F.log10(F.greatest(us, F.lit(1)) / 1000) * BINS_PER_DECADE + 1e-9)


def count_if(test: Column) -> Column:
    """The number of rows for which `test` is true."""
    from pyspark.sql import functions as F

    return F.count(F.when(test, 1))
