"""Sending the rows of a DataFrame: bodies are built in the JVM, totals come back as a value."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from qworker.errors import InvalidOptionError
from qworker.pipeline.writing.failures import clear_errors
from qworker.wire.names import check_task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Rows", "SendTotals", "bodies_of", "send_rows", "task_start", "write"]

#: How JSON is written: nulls stay, so that a parameter without a default gets None; times keep their microseconds.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How rows become messages. A name means that column, a `Column` is an expression over the others.

    `body`: the column that is the body as it stands; else the body is made of all columns, as JSON: the keyword
    arguments of `task`, or without a task one object. `queue`, `delay`, `ttl` and `priority` may differ from row to
    row, and `id` names each row (see `docs/guides/spark-sending.md`). Columns that are used for these stay in the body.
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
    """What a send came to. `rows` were read; `sent` messages were stored by this run (with its failed attempts);

    `already_there` rows had been stored before; `stored` messages come from all runs of this write id.
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
        return cls(**{each.name: document[each.name] for each in fields(cls)})


def bodies_of(df: DataFrame, rows: Rows) -> DataFrame:
    """Make the columns that the writer takes: `body`, and those of queue, id, delay, ttl, priority that are wanted.

    One row in, one row out, in the same order. Raises `InvalidNameError` and `InvalidOptionError` (a column that is not
    there, or twice).
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
        wanted = getattr(rows, name)
        if wanted is not None:
            column = F.col(_quoted(wanted)) if isinstance(wanted, str) else wanted
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

    With `task` the columns are its keyword arguments, without it the body is the row as a JSON object; `rows` says
    more. `write_id` names the write: run again with it, and the same input, only the rest is sent. `options` are those
    of the format `qworker`, by name. The session needs the data source (`open_session` registers it).

    Raises `InvalidError`s for what is wrong with input or options, before anything is sent where it shows in
    the columns; `BulkChangedError` for other rows under the same write id; `QueueFullError`, `QueuePausedError` and
    `ServerError`s. What was stored before an error stays: run it again under the same write id.
    """
    wanted = rows or Rows()
    if task is not None:
        wanted = replace(wanted, task=task)
    given = {name: str(value) for name, value in options.items()}
    if queue is not None:
        given["queue"] = queue
    if write_id is not None:
        given["writeId"] = write_id
    messages = bodies_of(df, wanted)
    if write_id is not None:
        # The ledger counts by partition: the same rows cut otherwise would be taken for others, or for new ones.
        given.setdefault("partitions", str(messages.rdd.getNumPartitions()))
    return SendTotals.of(write(messages, given))


def write(messages: DataFrame, given: Mapping[str, str]) -> dict[str, Any]:
    """Write a DataFrame and return the totals."""
    from qworker.pipeline.writing.writer import prepare

    prepare(given, messages.schema, overwrite=False)
    with tempfile.TemporaryDirectory(prefix="qworker-bulk-") as place:
        report = Path(place, "totals.json")
        writer = messages.write.format("qworker").mode("append")
        with clear_errors():
            writer.options(**{**given, "report": str(report)}).save()
        found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


def _check_names(df: DataFrame, rows: Rows) -> None:
    for at, name in enumerate(df.columns):
        if name in df.columns[:at]:
            raise InvalidOptionError(f"column {name}", "is there twice", "rename one of them")
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
