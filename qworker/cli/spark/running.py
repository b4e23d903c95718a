"""The Spark session of a verb, its steps on the terminal, and its errors in a line."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import click

from qworker.cli.framework.terminal import note
from qworker.errors import ArchiveDamagedError, InvalidOptionError, PipelineError, QworkerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_options", "start_spark", "step"]

_CAUSE: Final = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.MULTILINE)
_FILE: Final = re.compile(r"file:/*(/[^\s,;\"\']+?\.parquet)")


def spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master and --conf; the verb gets `spark`, a function that starts the session."""

    @click.option(
        "--master", default="local[*]", metavar="URL", show_default=True, help="Spark master."
    )
    @click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; repeatable.")
    @wraps(function)
    def with_spark(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(map(_setting, conf))
        return function(*args, spark=lambda: start_spark(master, settings), **kwargs)

    return with_spark


def start_spark(master: str, settings: dict[str, str]) -> SparkSession:
    """Start the session. Raises `SparkMissingError`, `JavaMissingError`."""
    from qworker.pipeline.failures import silence, silence_py4j
    from qworker.pipeline.session import OF_COMMANDS, open_session

    silence_py4j()
    # Spark creates this directory for tables, even if there are none: not in the current directory.
    warehouse = Path(tempfile.gettempdir(), f"qworker-spark-{os.getuid()}").as_uri()
    with step("starting Spark"):
        spark = open_session(
            app="qworker",
            master=master,
            settings={**OF_COMMANDS, "spark.sql.warehouse.dir": warehouse, **settings},
        )
    silence(spark)
    from pyspark.logger import PySparkLogger

    # It writes errors of SQL to stderr as JSON; we print them as one line.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    return spark


@contextmanager
def step(text: str, spark: SparkSession | None = None) -> Iterator[Callable[[str], None]]:
    """Show a step that takes long: on a terminal a line that moves and goes away, else lines on stderr.

    `spark`: the session that does it; the line has a bar of its tasks.
    """
    with _in_one_line():
        if not sys.stderr.isatty():
            note(f"{text} …")
            yield lambda more: note(f"{text}: {more} …")
            return
        if spark is not None:
            from qworker.cli.spark.progress_bar import watched

            with watched(spark, text) as report:
                yield report
            return
        from qworker.cli.framework.terminal import console

        with console(stderr=True).status(f"{text} …") as status:
            yield lambda more: status.update(f"{text}: {more} …")


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise our own errors as they are, out of those of Spark, and other errors of Spark as `PipelineError`."""
    from qworker.pipeline.failures import clear_errors

    try:
        with clear_errors():
            yield
    except QworkerError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        if damaged := _damaged(str(error)):
            raise damaged from error
        # The last error of a Python traceback within Spark's text is the cause.
        causes = _CAUSE.findall(str(error))
        text = causes[-1] if causes else str(error).strip().split("\n", 1)[0]
        raise PipelineError(f"Spark failed: {text}") from error


def _damaged(text: str) -> ArchiveDamagedError | None:
    """Find the file of an archive that Spark could not read."""
    for name in dict.fromkeys(_FILE.findall(text)):
        path = Path(unquote(name))
        if not path.exists():
            return ArchiveDamagedError(str(path), "the file was deleted while it was read")
        import pyarrow.parquet as pq
        from pyarrow import ArrowException

        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches(columns=["number", "event", "ts"]):
                    pass
        except (ArrowException, OSError):
            size = path.stat().st_size
            return ArchiveDamagedError(
                str(path),
                f"not a whole Parquet file (it is truncated or overwritten; {size:,} bytes)",
            )
    return None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidOptionError("--conf", f"{text!r} is not a setting", "write NAME=VALUE")
    return name.strip(), value.strip()
