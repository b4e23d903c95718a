"""Loggers of modules that every child and every producer imports.

structlog is imported by the first line that is logged. It imports rich, if that is installed, for tracebacks that our
lines do not have: 5 MB, and four fifths of the time that a child's first line keeps its messages waiting. Our own
processes do without until an app asks for such a traceback; those of users, whose default it is, do not.
"""

from __future__ import annotations

import sys
from typing import Any

from qworker.telemetry.imports import Late, left_out

__all__ = ["Logger", "import_structlog", "logger"]


class Logger:
    """A logger of structlog, with the configuration of the moment at which it logs.

    Until a process of users has configured structlog, which prints every level to stdout, lines at debug are left out.
    """

    __slots__ = ("_name",)

    #: Whether the process is one of ours, whose logs are configured here.
    ours = False

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        if Logger.ours:
            import_structlog()
        elif level == "debug" and not _is_configured():
            return _leave_out
        import structlog

        return getattr(structlog.get_logger(self._name), level)


def _is_configured() -> bool:
    if "structlog" not in sys.modules:
        return False
    import structlog

    return structlog.is_configured()


def _leave_out(event: str, **_: object) -> None:
    """Log nothing."""


def import_structlog() -> None:
    """Import structlog, without rich if nothing else has imported either. For processes of our own.

    The tracebacks of rich that an app may name import it when the first one is written.
    """
    if "structlog" not in sys.modules:
        with left_out("rich"):
            from structlog import dev
        names = vars(dev)
        if names.get("rich", dev) is None:
            names["Console"] = Late(_console)
            names["Traceback"] = Late(_traceback)
            names["rich_traceback"] = dev.RichTracebackFormatter()
            if "rich_monochrome_traceback" in names:
                names["rich_monochrome_traceback"] = dev.RichTracebackFormatter(color_system=None)


def _console() -> Any:
    from rich.console import Console

    return Console


def _traceback() -> Any:
    from rich.traceback import Traceback

    return Traceback


def logger(name: str) -> Logger:
    """Return a logger for a module."""
    return Logger(name)
