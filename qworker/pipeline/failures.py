"""Brings the errors of tasks back to the driver as they were.

The driver gets the text of a task's traceback, with some 200 lines of Java around it. So a task writes its error into
the text in a form that can be parsed, and the driver raises it again.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qworker import errors
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkTaskError", "clear_errors", "marked_errors", "silence", "silence_py4j"]

_MARK: Final = re.compile(r"\[qworker:(\{[^\n]*\})\]")


class SparkTaskError(Exception):
    """A `QworkerError` on its way through Spark: its text, then its class and arguments."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def of(cls, error: QworkerError) -> SparkTaskError:
        """Wrap an error."""
        mark = json.dumps([type(error).__name__, *error.__reduce__()[1]])
        return cls(f"{error} [qworker:{{{mark}}}]")


@contextmanager
def marked_errors() -> Iterator[None]:
    """In a task: raise a `QworkerError` in a form that `clear_errors` can read."""
    try:
        yield
    except QworkerError as error:
        raise SparkTaskError.of(error) from error


@contextmanager
def clear_errors() -> Iterator[None]:
    """On the driver: raise the `QworkerError` that ended a Spark job, with Spark's error as its cause."""
    try:
        yield
    except QworkerError:
        raise
    except Exception as error:
        if (known := _known(str(error))) is None:
            raise
        raise known from error


def silence(spark: SparkSession) -> None:
    """Stop Spark's logs: an error that ends a job is raised as well, and each attempt logs 50 lines of traceback.

    QWORKER_DEBUG=1 keeps them.
    """
    if os.environ.get("QWORKER_DEBUG") != "1":
        spark.sparkContext.setLogLevel("OFF")


def silence_py4j() -> None:
    """Drop what py4j writes to the root logger: the tracebacks of a Ctrl-C, which it raises as well.

    QWORKER_DEBUG=1 keeps them.
    """
    if os.environ.get("QWORKER_DEBUG") != "1":
        logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _known(text: str) -> QworkerError | None:
    match = _MARK.search(text)
    if match is None:
        return None
    try:
        name, *arguments = json.loads(match[1][1:-1])
        error = getattr(errors, name)(*arguments)
    except (ValueError, TypeError, AttributeError):
        return None
    return error if isinstance(error, QworkerError) else None
