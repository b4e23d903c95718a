"""A logger that never raises, with any configuration of structlog.

An app may configure processors that raise, or a logger whose methods are coroutines. Lines that fail are written to
stderr as JSON, with the name of the error.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Final

import msgspec

from qworker.telemetry.logger import logger

__all__ = ["GuardedLogger", "guarded"]

_STDERR: Final = 2


class GuardedLogger:
    """Logs with the current configuration of structlog; raises nothing."""

    __slots__ = ("_log",)

    def __init__(self, name: str) -> None:
        self._log = logger(name)

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
        except BaseException as error:  # noqa: BLE001 - work does not stop for a log line
            problem = type.__dict__["__name__"].__get__(type(error))
        _write_plainly({"level": level, "event": event, **fields, "log_problem": problem})


def guarded(name: str) -> GuardedLogger:
    """Return a logger for a module."""
    return GuardedLogger(name)


def _write_plainly(line: dict[str, Any]) -> None:
    try:
        os.write(_STDERR, msgspec.json.encode(line, enc_hook=_shown) + b"\n")
    except BaseException:  # noqa: BLE001 - there is no other place to log to
        return


def _shown(value: object) -> str:
    return type(value).__name__
