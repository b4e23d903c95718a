"""Logs: structlog to stderr, JSON for machines and readable lines for people.

    configure_logs()                                # once, at the start of a process
    log = structlog.get_logger(__name__)
    log.info("message_acked", queue="emails", message_id="…")

An event is a fixed name in the past tense, its values are fields; bodies are never among them. What the standard
library's `logging` is given goes the same way. A log that cannot be written (closed pipe, full disk) is dropped:
no work stops for want of a reader.
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

from qworker.errors import InvalidOptionError
from qworker.telemetry.options import FORMATS, LEVELS

__all__ = ["Seldom", "configure_logs"]

Event = MutableMapping[str, Any]

# Control characters and those that turn the direction of text: a value never moves a terminal's cursor, never
# begins a line of its own and never hides what stands beside it.
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
#: Fields that the renderer writes below the line, in lines of their own.
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

    `format` auto: JSON, or coloured text where the log goes to a terminal (NO_COLOR is honoured). `fd` is the file
    descriptor to write to; None is stderr. `processors` of structlog add to lines of both kinds. Raises
    `InvalidOptionError` for another format or level.
    """
    if format not in FORMATS:
        raise InvalidOptionError(
            "log_format", f"{ascii(format)[:80]} is no format", _one_of(FORMATS)
        )
    if level not in LEVELS:
        raise InvalidOptionError("log_level", f"{ascii(level)[:80]} is no level", _one_of(LEVELS))
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


class Seldom:
    """Lets a repeated event through once per key and minute.

    `more(key)` says how many were held back since the last one that was let through; None: hold this one back too.
    """

    def __init__(
        self, every_s: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}

    def more(self, key: str) -> int | None:
        """Count one event of `key`."""
        now = self._clock()
        at, held = self._last.get(key, (float("-inf"), 0))
        if now - at < self._every_s:
            self._last[key] = (at, held + 1)
            return None
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[key] = (now, 0)
        return held


class _Writer:
    """What structlog calls a logger: one write per line, errors swallowed, no buffer that could hold a line back."""

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
        except Exception:  # noqa: BLE001  a record whose arguments do not fit its text ends here, not in a handler
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
    # ASCII only: control characters and everything that is not ASCII is escaped by JSON itself.
    return [_ordered, structlog.processors.JSONRenderer(default=_shown)]


def _for_people(write: _Writer) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=write.to_terminal and not os.environ.get("NO_COLOR"),
        # The default one shows local variables, which hold message bodies.
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=24,
        sort_keys=False,
    )
    return [_escaped, renderer]


def _ordered(_logger: object, _method: str, event: Event) -> Mapping[str, Any]:
    first = {name: event.pop(name) for name in ("timestamp", "level", "event") if name in event}
    return {**first, **event}


def _without_bytes(_logger: object, _method: str, event: Event) -> Event:
    # Bytes are bodies and envelopes more often than not.
    for name, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[name] = _shown(value)
    return event


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return repr(value)


def _words(value: object) -> str:
    """Write a value for people: names as a list, not as Python."""
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
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
