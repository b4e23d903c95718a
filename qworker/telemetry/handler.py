"""Where log lines go: a file descriptor, to which the records of `logging` go as well."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

__all__ = ["LineWriter", "RecordHandler"]


class LineWriter:
    """A logger for structlog: one unbuffered write per line, errors ignored."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def to_terminal(self) -> bool:
        """Whether it is a terminal."""
        try:
            return os.isatty(self._fd)
        except OSError:
            return False

    def msg(self, line: str) -> None:
        """Write a line."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return

    debug = info = warning = warn = error = critical = exception = log = msg


class RecordHandler(logging.Handler):
    """Passes records of `logging` on, as the lines that the formatter makes of them."""

    def __init__(self, write: LineWriter, make_formatter: Callable[[], logging.Formatter]) -> None:
        super().__init__()
        self._write = write
        self._make_formatter = make_formatter

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as a line, with a formatter that is made for the first one."""
        if self.formatter is None:
            self.formatter = self._make_formatter()
        return self.formatter.format(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; one that cannot be written is reported."""
        try:
            self._write.msg(self.format(record))
        except Exception:  # noqa: BLE001  arguments that do not fit the record's text must not fail a handler
            self._write.msg('{"level": "error", "event": "log_record_unreadable"}')
