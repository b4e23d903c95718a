"""Sends the rows of a DataFrame: the JVM builds the bodies, and the totals come back as a value."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from qworker.errors import InvalidOptionError
from qworker.pipeline.failures import clear_errors
from qworker.wire.names import check_task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Rows", "SendTotals", "bodies_of", "send_rows", "task_start", "write"]

#: How JSON is written: nulls stay, so that a parameter without a default gets None; times keep their microseconds.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


#: How plans are cut while rows are sent under a write id: on a cluster of any size alike.
_FILES: Final = "spark.sql.files.minPartitionNum"
_CUT: Final = {
    _FILES: "8",
    "spark.sql.leafNodeDefaultParallelism": "8",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How rows become messages. A name means that column, a `Column` is an expression over the others.

    `body`: the column that holds the body; without it the body is all columns as JSON, the keyword arguments of `task`,
    or one object without a task. `queue`, `delay`, `ttl` and `priority` may differ from row to row, and `id` names each
    row (see `docs/guides/spark-sending.md`). Columns that are used for these stay in the body.
    """

    task: str | None = None
    body: str | Column | None = None
    id: str | Column | None = None
    queue: Column | None = None
    delay: Column | None = None
    ttl: Column | None = None
    priority: Column | None = None


@dataclass(frozen=True, slots=True)
class SendTotals:
    """Totals of a send.

    `rows` read; messages `sent` by this run, its failed attempts included; rows `already_there` before; messages
    `stored` by all runs of this write id.
    """

    write_id: str
    rows: int
    sent: int
    already_there: int
    stored: int
    queues: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read the document that the writer leaves."""
        return cls(**{field.name: document[field.name] for field in fields(cls)})


def bodies_of(df: DataFrame, rows: Rows) -> DataFrame:
    """Make the columns that the writer takes: `body`, and those of queue, id, delay, ttl, priority that `rows` sets.

    One row in, one row out, in the same order. Raises `InvalidNameError` and `InvalidOptionError` (a column that is
    missing, or there twice).
    """
    from pyspark.sql import functions as F

    _check_names(df, rows)
    if rows.body is not None:
        body = F.col(_quoted(rows.body)) if isinstance(rows.body, str) else rows.body
    else:
        body = F.to_json(F.struct(*[F.col(_quoted(name)) for name in df.columns]), _JSON)
        if rows.task is not None:
            body = F.concat(F.lit(task_start(rows.task)), body, F.lit("}"))
    columns = [body.alias("body")]
    for name in ("queue", "id", "delay", "ttl", "priority"):
        given = getattr(rows, name)
        if given is not None:
            column = F.col(_quoted(given)) if isinstance(given, str) else given
            columns.append(column.alias(name))
    return df.select(*columns)


def task_start(task: str) -> str:
    """Write the start of a call body, up to its keyword arguments; `}` ends it. Raises `InvalidNameError`."""
    return f'{{"task":{json.dumps(check_task(task))},"args":[],"kwargs":'


def send_rows(
    df: DataFrame,
    *,
    queue: str | None = None,
    task: str | None = None,
    rows: Rows | None = None,
    write_id: str | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> SendTotals:
    """Send each row of a DataFrame as one message, once however often tasks or the job are repeated.

    With `task` the columns are its keyword arguments, without it the body is the row as a JSON object; see `Rows` for
    more. `write_id` names the write: run again with it, and the same input, only the rest is sent, also on a cluster of
    another size. `options` are those of the format `qworker`, by name. The session needs the data source
    (`open_session` registers it).

    Raises an `InvalidError` for wrong input or options, before anything is sent if the columns show it;
    `BulkChangedError` for other rows under the same write id; `QueueFullError`, `QueuePausedError` and `ServerError`s.
    Messages stored before an error stay: run it again under the same write id.
    """
    rows = rows or Rows()
    if task is not None:
        rows = replace(rows, task=task)
    given = {name: str(value) for name, value in options.items()}
    if queue is not None:
        given["queue"] = queue
    if write_id is not None:
        given["writeId"] = write_id
    messages = bodies_of(df, rows)
    if write_id is None:
        return SendTotals.of(write(messages, given))
    with _cut_alike(df.sparkSession):
        # The ledger counts by partition: the same rows in other partitions would count as changed, or as new.
        given.setdefault("partitions", str(messages.rdd.getNumPartitions()))
        return SendTotals.of(write(messages, given))


@contextmanager
def _cut_alike(spark: SparkSession) -> Iterator[None]:
    """Let Spark cut files and shuffles alike, however many cores it has. What the session sets for files counts."""
    before = {name: spark.conf.get(name, None) for name in _CUT}
    try:
        for name, value in _CUT.items():
            if before[name] is None or name != _FILES:
                spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)


def write(messages: DataFrame, given: Mapping[str, str]) -> dict[str, Any]:
    """Write a DataFrame and return the totals."""
    from qworker.pipeline.sink.writer import prepare

    prepare(given, messages.schema, overwrite=False)
    with tempfile.TemporaryDirectory(prefix="qworker-bulk-") as directory:
        report = Path(directory, "totals.json")
        writer = messages.write.format("qworker").mode("append")
        with clear_errors():
            writer.options(**{**given, "report": str(report)}).save()
        totals: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return totals


def _check_names(df: DataFrame, rows: Rows) -> None:
    for index, name in enumerate(df.columns):
        if name in df.columns[:index]:
            raise InvalidOptionError(f"column {name}", "appears twice", "rename one of them")
    for given in (rows.body, rows.id):
        if isinstance(given, str) and given not in df.columns:
            near = get_close_matches(given, df.columns, 1)
            raise InvalidOptionError(
                f"column {given}",
                "is not there",
                f"did you mean {near[0]!r}?" if near else f"there are {', '.join(df.columns)}",
            )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
