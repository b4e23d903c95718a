"""Logs: structlog to stderr, as JSON for machines or readable lines for people.

    configure_logs()                                # once, at the start of a process
    log = structlog.get_logger(__name__)
    log.info("message_acked", queue="emails", message_id="…")

An event is a fixed name in the past tense; its values are fields, never bodies. Records of the standard library's
`logging` go the same way. Lines that cannot be written (closed pipe, full disk) are dropped: work does not stop for its
log.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import structlog
from structlog.typing import Processor

from qworker.errors import InvalidOptionError, shown
from qworker.telemetry.options import FORMATS, LEVELS

__all__ = ["LogThrottle", "configure_logs"]

Event = MutableMapping[str, Any]

# Control characters and those that change the direction of text: a value must not move the terminal's cursor, begin a
# new line, or hide the text beside it.
_CONTROLS: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}
#: Fields that the renderer writes below the line.
_IN_LINES: Final = ("exception", "stack")
_TRACEBACK: Final = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


def configure_logs(
    format: str = "auto",  # noqa: A002
    level: str = "info",
    *,
    fd: int | None = None,
    processors: Sequence[Processor] = (),
) -> None:
    """Set up structlog and `logging` for this process.

    `format` "auto": coloured text on a terminal (unless NO_COLOR is set), otherwise JSON. `fd`: the file descriptor to
    write to; None: stderr. `processors` of structlog apply to the lines of both. Raises `InvalidOptionError` for an
    unknown format or level.
    """
    if format not in FORMATS:
        raise InvalidOptionError("log_format", f"{shown(format)} is not a format", _one_of(FORMATS))
    if level not in LEVELS:
        raise InvalidOptionError("log_level", f"{shown(level)} is not a level", _one_of(LEVELS))
    number = logging.getLevelNamesMapping()[level.upper()]
    write = _Writer(_stderr() if fd is None else fd)
    people = format == "text" or (format == "auto" and write.to_terminal)
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        *processors,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if people else "iso", utc=not people, key="timestamp"
        ),
        structlog.processors.format_exc_info,
        _without_bytes,
    ]
    ending = _for_people(write) if people else _for_machines()
    structlog.configure(
        processors=[*common, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: write,
        cache_logger_on_first_use=False,
    )
    _take_over_logging(write, number, common, ending)


class LogThrottle:
    """Limits a repeated log event to one per key and minute."""

    def __init__(
        self, every_s: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, key: str) -> int | None:
        """Count an event; returns how many were suppressed since the last one, or None to suppress this one."""
        now = self._clock()
        admitted_at, suppressed = self._last.get(key, (float("-inf"), 0))
        if now - admitted_at < self._every_s:
            self._last[key] = (admitted_at, suppressed + 1)
            return None
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[key] = (now, 0)
        return suppressed


class _Writer:
    """A logger for structlog: one unbuffered write per line, errors ignored."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def to_terminal(self) -> bool:
        try:
            return os.isatty(self._fd)
        except OSError:
            return False

    def msg(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return

    debug = info = warning = warn = error = critical = exception = log = msg


class _Handler(logging.Handler):
    """Passes records of `logging` on."""

    def __init__(self, write: _Writer) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write.msg(self.format(record))
        except Exception:  # noqa: BLE001  arguments that do not fit the record's text must not fail a handler
            self._write.msg('{"level": "error", "event": "log_record_unreadable"}')


def _take_over_logging(
    write: _Writer, level: int, common: list[Processor], ending: list[Processor]
) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
    handler = _Handler(write)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root.addHandler(handler)
    root.setLevel(level)


def _for_machines() -> list[Processor]:
    # JSON escapes control characters and everything that is not ASCII.
    return [_ordered, structlog.processors.JSONRenderer(default=_text)]


def _for_people(write: _Writer) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=write.to_terminal and not os.environ.get("NO_COLOR"),
        # The default shows local variables, and so message bodies.
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=24,
        sort_keys=False,
    )
    return [_escaped, renderer]


def _ordered(_logger: object, _method: str, event: Event) -> Mapping[str, Any]:
    first = {name: event.pop(name) for name in ("timestamp", "level", "event") if name in event}
    return {**first, **event}


def _without_bytes(_logger: object, _method: str, event: Event) -> Event:
    # Bytes are mostly bodies and envelopes.
    for name, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[name] = _text(value)
    return event


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return repr(value)


def _words(value: object) -> str:
    """Write a value for people: a list of names without Python's brackets and quotes."""
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return ", ".join(value)
    return value if isinstance(value, str) else repr(value)


def _escaped(_logger: object, _method: str, event: Event) -> Event:
    for name, value in event.items():
        if value is None or isinstance(value, bool | int | float):
            continue
        event[name] = _words(value).translate(_TRACEBACK if name in _IN_LINES else _CONTROLS)
    return event


def _stderr() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


def _one_of(words: tuple[str, ...]) -> str:
    return f"it must be one of {', '.join(words)}"
