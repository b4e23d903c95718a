"""Where log lines go: a file descriptor, to which the records of `logging` go as well."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import stat
import struct
import termios
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

__all__ = ["LineWriter", "RecordHandler"]


#: A reader that stands still holds up a process for this long, once: then lines are dropped until it reads on.
_PATIENCE_MS: Final = 1000
#: What a socket that can be written to takes at once.
_OF_SOCKET: Final = 65_536


class LineWriter:
    """A logger for structlog: an unbuffered write per line, errors ignored.

    It does not wait for a pipe or a socket whose reader has stopped reading, nor for a terminal after Ctrl-S: it drops
    lines, and says how many once they are read again, in text `for_people` or JSON as the other lines.
    """

    def __init__(self, fd: int) -> None:
        self.for_people = False
        self._fd = fd
        self._dropped = 0

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
            if dropped := self._dropped:
                if not self._takes_more(0):
                    self._dropped += 1
                    return
                self._dropped = 0
                # The line before may have been cut off.
                data = f"\n{self._notice(dropped)}\n".encode() + data
            while data:
                if not self._takes_more(_PATIENCE_MS):
                    self._dropped += 1
                    return
                data = data[os.write(self._fd, data[: self._room(len(data))]) :]
        except OSError:
            return

    debug = info = warning = warn = error = critical = exception = log = msg

    def _notice(self, dropped: int) -> str:
        now, event = datetime.now(UTC), "log_lines_dropped"
        if self.for_people:
            return f"{now.astimezone():%H:%M:%S} [warning  ] {event:24} lines={dropped}"
        fields = {"timestamp": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}", "level": "warning", "event": event}
        return json.dumps({**fields, "lines": dropped})

    def _takes_more(self, within_ms: int) -> bool:
        waits = select.poll()
        waits.register(self._fd, select.POLLOUT)
        return bool(waits.poll(within_ms if os.get_blocking(self._fd) else 0))

    def _room(self, wanted: int) -> int:
        """Bytes that a write takes without waiting, now that it takes some."""
        if wanted <= select.PIPE_BUF:
            return wanted
        kind = os.fstat(self._fd).st_mode
        if stat.S_ISSOCK(kind):
            return _OF_SOCKET
        if stat.S_ISFIFO(kind):
            # Several processes share it, so a line goes in one piece where that is possible.
            (unread,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))
            size = getattr(fcntl, "F_GETPIPE_SZ", None)
            return fcntl.fcntl(self._fd, size) if size and not unread else select.PIPE_BUF
        return wanted


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
