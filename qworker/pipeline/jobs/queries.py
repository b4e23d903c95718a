"""Queries in SQL over frames.

Spark reads a text in a fraction of the time in which it gets the calls of a Column one by one, and analyses it once,
where it analyses each frame on the way. On few events that is most of the work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["at", "query", "samples_of"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Braces around numbers are of a regular expression, and no name of a frame.
_QUANTIFIER: Final = re.compile(r"\{(\d+(?:,\d*)?)\}")


def query(text: str, args: Mapping[str, Any] | None = None, /, **frames: DataFrame) -> DataFrame:
    """Make the frame of a text, in which `{name}` stands for a frame and `:name` for an argument."""
    session = next(iter(frames.values())).sparkSession
    return session.sql(_QUANTIFIER.sub(r"{{\1}}", text), dict(args or {}), **frames)


def at(moment: datetime) -> str:
    """Write a time, which has a zone, as SQL."""
    return f"timestamp_micros({(moment - _EPOCH) // timedelta(microseconds=1)})"


def samples_of(
    rows: DataFrame, tests: Mapping[str, str], columns: str, order: tuple[str, str], most: int
) -> dict[str, list[Any]]:
    """Read the first rows for which each test holds, by a time and an id; tests without any row are left out."""
    if not tests:
        return {}
    time, name = order
    text = " union all ".join(
        f"(select '{kind}' as kind, unix_micros({time}) as place, {columns} from {{rows}} "
        f"where {test} order by {time}, {name} limit {most})"
        for kind, test in tests.items()
    )
    # The rows of a union have no order.
    read = query(text, rows=rows).collect()
    read.sort(key=lambda row: (row.kind, row.place is not None, row.place or 0, row[name]))
    found = {kind: list(some) for kind, some in groupby(read, lambda row: row.kind)}
    return {kind: found[kind] for kind in tests if kind in found}
