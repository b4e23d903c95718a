"""Errors of tasks, brought back to the driver as what they were.

Spark hands the driver the text of a task's traceback, some 200 lines of Java around it. So a task puts its error into
its text in a form that can be read back, and the driver raises it again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from qworker import errors
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TaskFailedError", "clear_errors", "hush", "marked_errors"]

_MARK: Final = re.compile(r"\[qworker:(\{[^\n]*\})\]")


class TaskFailedError(Exception):
    """An error of ours on its way through Spark: its text, and behind it class and arguments."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def of(cls, error: QworkerError) -> TaskFailedError:
        """Wrap an error."""
        mark = json.dumps([type(error).__name__, *error.__reduce__()[1]])
        return cls(f"{error} [qworker:{{{mark}}}]")


@contextmanager
def marked_errors() -> Iterator[None]:
    """In a task: let an error of ours leave in a form that `clear_errors` knows."""
    try:
        yield
    except QworkerError as error:
        raise TaskFailedError.of(error) from error


@contextmanager
def clear_errors() -> Iterator[None]:
    """On the driver: raise the error of ours that ended a Spark job, with Spark's as its cause; let others be."""
    try:
        yield
    except QworkerError:
        raise
    except Exception as error:
        if (known := _known(str(error))) is None:
            raise
        raise known from error


def hush(spark: SparkSession) -> None:
    """Let Spark log nothing: what ends a job comes as an exception too, and each attempt is 50 lines of trace.

    With QWORKER_DEBUG=1 it logs on.
    """
    if os.environ.get("QWORKER_DEBUG") != "1":
        spark.sparkContext.setLogLevel("OFF")


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
