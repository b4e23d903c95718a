"""Columns of the tables that Spark counts for a report, as SQL, and their rows, read in one job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.queries import query
from qworker.pipeline.report.sums import BINS_PER_DECADE, TABLES, Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["bin_of", "bucket", "count_if", "microseconds", "rows_of"]


def rows_of(
    queries: Mapping[str, str],
    *before: str,
    args: Mapping[str, Any] | None = None,
    **frames: DataFrame,
) -> Iterator[tuple[str, Key, Sequence[int]]]:
    """Read the rows of tables in one job: name, key behind some other columns, and values.

    `queries`: name → SQL, in which `{name}` stands for a frame of this name and `:name` for one of `args`.
    """
    text = " union all ".join(_alike(name, query, before) for name, query in queries.items())
    for row in query(text, args, **frames).collect():
        yield row.name, tuple(json.loads(row.key).values()), row["values"]


def _alike(name: str, query: str, before: Sequence[str]) -> str:
    """Give a table the columns of all: its key as JSON, because keys of different tables have different types."""
    table = TABLES[name]
    key = ", ".join(f"`{each}`" for each in (*before, *table.keys))
    values = ", ".join(f"cast(coalesce(`{each}`, 0) as bigint)" for each in table.values)
    return (
        f"select '{name}' as name, to_json(struct({key}), map('ignoreNullFields', 'false')) as key, "
        f"array({values}) as `values` from ({query})"
    )


def bucket(column: str, width_s: int) -> str:
    """The number of the bucket of `width_s` seconds in which a timestamp lies, counted from 1970."""
    return f"floor(unix_micros({column}) / {width_s * 1_000_000})"


def microseconds(column: str) -> str:
    """Milliseconds as whole microseconds: their sum is the same in any order. Null for what is not a number."""
    return f"try_cast(round({column} * 1000) as bigint)"


def bin_of(us: str) -> str:
    """The bin of a duration in µs, which begins at 10 ^ (bin / BINS_PER_DECADE) ms; below 1 µs it is that of 1 µs."""
    return f"floor(log10(greatest({us}, 1) / 1000) * {BINS_PER_DECADE} + 1e-9)"


def count_if(test: str) -> str:
    """The number of rows for which `test` is true."""
    return f"count(if({test}, 1, null))"
