"""SQL over history and state: named views, and the rows of a query as plain values.

journal    events in Redis               archive    events of an archive, if one is given
queues     one row per queue             messages   one row per message in Redis, dead ones included
dead       one row per dead letter
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError
from qworker.pipeline.jobs.archive import read_archive
from qworker.pipeline.jobs.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LIVE", "Result", "plain", "query", "register_views"]

#: Tables of the data source, by the names of their views.
LIVE: Final = ("journal", "queues", "messages", "dead")


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query, as values that JSON takes. `more`: the query has more rows than the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool

    def document(self) -> list[dict[str, Any]]:
        """One object per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def csv(self) -> str:
        """Comma-separated, with a line of titles; null is empty, nested values are JSON."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return out.getvalue()


def register_views(
    spark: SparkSession, *, source: Mapping[str, str] | None, lake: Lake | None
) -> tuple[str, ...]:
    """Register views of a server's tables (`source`: its options) and of an archive; returns their names.

    Each query reads the tables again; nothing is read before.
    """
    names = []
    if source is not None:
        for table in LIVE:
            frame = spark.read.format("qworker").options(**source).option("table", table).load()
            frame.createOrReplaceTempView(table)
            names.append(table)
    if lake is not None:
        read_archive(spark, lake).createOrReplaceTempView("archive")
        names.append("archive")
    return tuple(names)


def query(spark: SparkSession, text: str, *, limit: int) -> Result:
    """Run one statement of Spark SQL; returns at most `limit` rows. Raises `InvalidOptionError` if it is not valid."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        frame = spark.sql(text)
        columns = tuple(frame.columns)
        rows = frame.limit(limit + 1).collect() if columns else []
    except (AnalysisException, ParseException) as error:
        raise InvalidOptionError("sql", _first_line(error), _advice(str(error))) from error
    return Result(
        columns,
        tuple(tuple(plain(value) for value in row) for row in rows[:limit]),
        len(rows) > limit,
    )


def plain(value: Any) -> Any:
    """Turn a value of Spark into one that JSON takes: times in ISO 8601 UTC, bytes as text, rows as objects."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case tuple() if hasattr(value, "asDict"):
            return {name: plain(item) for name, item in value.asDict().items()}
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case float() if value != value or abs(value) == float("inf"):
            return None
    return value


def _cell(value: Any) -> str:
    import json

    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_line(error: Exception) -> str:
    """The first sentence of Spark's text, without SQLSTATE and query plan."""
    text = str(error).strip().split("\n", 1)[0]
    return text.split(" SQLSTATE", 1)[0].rstrip(" .;:")


def _advice(text: str) -> str:
    if "TABLE_OR_VIEW_NOT_FOUND" in text:
        return f"there are {', '.join(LIVE)}, and archive with --archive DIR"
    return "it must be one statement of Spark SQL"
