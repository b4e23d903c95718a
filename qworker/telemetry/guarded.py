"""A logger that never raises: what the application has made of structlog must not end the work that it tells of.

An app may configure structlog as it likes (processors that raise, a logger whose methods are coroutines). Lines that
cannot be logged that way are written to stderr as JSON, with the name of what went wrong.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Final

import msgspec
import structlog

__all__ = ["GuardedLogger", "guarded"]

_STDERR: Final = 2


class GuardedLogger:
    """Logs with structlog as it is configured when a line is logged; raises nothing."""

    __slots__ = ("_log",)

    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log at level debug."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log at level info."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log at level warning."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log at level error."""
        self._write("error", event, fields)

    def critical(self, event: str, **fields: Any) -> None:
        """Log at level critical."""
        self._write("critical", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        try:
            answer = getattr(self._log, level)(event, **fields)
            if answer is None or not inspect.iscoroutine(answer):
                return
            answer.close()
            problem = "the configured logger is asynchronous"
        except BaseException as error:  # noqa: BLE001 - a line of the log is not worth the work
            problem = type.__dict__["__name__"].__get__(type(error))
        _write_plainly({"level": level, "event": event, **fields, "log_problem": problem})


def guarded(name: str) -> GuardedLogger:
    """Return a logger for a module."""
    return GuardedLogger(name)


def _write_plainly(line: dict[str, Any]) -> None:
    try:
        os.write(_STDERR, msgspec.json.encode(line, enc_hook=_shown) + b"\n")
    except BaseException:  # noqa: BLE001 - nothing is left to tell it to
        return


def _shown(value: object) -> str:
    return type(value).__name__
