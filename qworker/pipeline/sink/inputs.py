"""Inputs of `qworker spark send`: files and tables as DataFrames, with the same partitions on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qworker.errors import InvalidOptionError
from qworker.pipeline.sink.send import Rows, task_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FORMATS", "Input", "format_of", "read_input"]

FORMATS: Final = ("parquet", "csv", "jsonl")
_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_PACKED: Final = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy"})
#: Spark cuts files by the number of cores, so a re-run elsewhere would have other partitions.
_FEWEST_PARTITIONS: Final = "8"
_LINE: Final = "value"


@dataclass(frozen=True, slots=True)
class Input:
    """Rows to send, their source ("parquet", "csv", "jsonl", "table"), and how they become messages."""

    df: DataFrame
    kind: str
    rows: Rows


def read_input(
    spark: SparkSession,
    name: str,
    *,
    form: str | None = None,
    schema: str | None = None,
    rows: Rows,
) -> Input:
    """Open a file, a directory, a pattern of files, or else a table of the session's catalog. Nothing is read yet.

    CSV has a header, and its columns are text unless `schema` (DDL: "id INT, name STRING") says otherwise. Objects of
    JSON lines are sent as written. Raises `InvalidOptionError` for a name that is neither file nor table, an unknown
    format, or a schema that does not fit.
    """
    spark.conf.set("spark.sql.files.minPartitionNum", _FEWEST_PARTITIONS)
    path = name
    if "://" not in name:
        if not _is_file(name):
            if form is not None or not _is_table(spark, name):
                raise InvalidOptionError(
                    "FILE|TABLE",
                    f"there is no file or table named {name!r}",
                    "check name and directory",
                )
            return Input(spark.table(name), "table", rows)
        # An existing session may run in another directory, or resolve names in a cluster's store.
        path = f"file://{Path(name).absolute()}"
    kind = form or format_of(name)
    if schema is not None and kind != "csv":
        raise InvalidOptionError("--schema", f"cannot be used with {kind}", "leave it out")
    if kind == "jsonl":
        return Input(_lines(spark, path), kind, _rows_of_lines(name, rows))
    reader = spark.read.options(header="true", mode="FAILFAST", enforceSchema="false")
    if schema is not None:
        reader = reader.schema(schema)
    return Input(reader.csv(path) if kind == "csv" else spark.read.parquet(path), kind, rows)


def format_of(name: str) -> str:
    """Guess the format from the name, of a directory from the files in it. Raises `InvalidOptionError`."""
    path = Path(name)
    names = [path, *_inside(path)] if path.is_dir() else [path]
    for file in names:
        suffixes = [suffix.lower() for suffix in file.suffixes]
        while suffixes and suffixes[-1] in _PACKED:
            suffixes.pop()
        if suffixes and suffixes[-1] in _SUFFIXES:
            return _SUFFIXES[suffixes[-1]]
    raise InvalidOptionError(
        "--format", f"cannot be guessed from the name {name!r}", f"give one of {', '.join(FORMATS)}"
    )


def _inside(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if not file.name.startswith(("_", ".")))


def _is_file(name: str) -> bool:
    path = Path(name)
    if path.exists():
        return True
    return any(char in name for char in "*?[{") and any(path.parent.glob(path.name))


def _is_table(spark: SparkSession, name: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return spark.catalog.tableExists(name)
    except PySparkException:
        return False  # A table cannot have this name.


def _lines(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as F

    return spark.read.text(path).where(F.trim(F.col(_LINE)) != "")


def _rows_of_lines(name: str, rows: Rows) -> Rows:
    """Make messages of lines: the text stays as it is, so nothing is lost on the way.

    A line that is not a JSON object ends the job with `InvalidBodyError`.
    """
    from pyspark.sql import functions as F

    if rows.body is not None:
        raise InvalidOptionError("--body", "cannot be used with JSON lines", "the line is the body")
    line = F.col(_LINE)
    problem = F.concat(F.lit("is not a JSON object: "), F.substring(line, 1, 60))
    error = F.array(
        F.lit("InvalidBodyError"), F.lit(f"a line of {name}"), problem, F.lit("write one per line")
    )
    mark = F.concat(F.lit("[qworker:{"), F.to_json(error), F.lit("}]"))
    body = F.when(F.json_object_keys(line).isNotNull(), line).otherwise(F.raise_error(mark))
    if rows.task is not None:
        body = F.concat(F.lit(task_start(rows.task)), body, F.lit("}"))
    row_id = rows.id
    if isinstance(row_id, str):
        row_id = F.get_json_object(
            line, f"$[{json.dumps(row_id, ensure_ascii=False)}]".replace('"', "'")
        )
    return Rows(
        body=body,
        id=row_id,
        queue=rows.queue,
        delay=rows.delay,
        ttl=rows.ttl,
        priority=rows.priority,
    )
