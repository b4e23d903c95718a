"""Logs: structlog to stderr, as JSON or as readable lines.

    configure_logs()                                # once, at the start of a process
    log = logger(__name__)                          # qworker.telemetry.logger
    log.info("message_acked", queue="emails", message_id="…")

An event is a fixed name in the past tense; its values are fields, never bodies. Records of the standard library's
`logging` go the same way. Lines that cannot be written (closed pipe, full disk, a reader that stands still) are
dropped: work does not stop for its log.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError, shown
from qworker.telemetry.handler import LineWriter, RecordHandler
from qworker.telemetry.imports import when_imported
from qworker.telemetry.logger import Logger, import_structlog
from qworker.telemetry.options import FORMATS, LEVELS

if TYPE_CHECKING:
    from structlog.typing import Processor

__all__ = ["configure_logs"]

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
    """Set up structlog and `logging` for this process; structlog, when it is imported: by the first line at the latest.

    `format` "auto": coloured text on a terminal (unless NO_COLOR is set), otherwise JSON. `fd`: the file descriptor to
    write to; None: stderr. `processors` of structlog apply to the lines of both. Raises `InvalidOptionError` for an
    unknown format or level.
    """
    if format not in FORMATS:
        raise InvalidOptionError("log_format", f"{shown(format)} is not a format", _one_of(FORMATS))
    if level not in LEVELS:
        raise InvalidOptionError("log_level", f"{shown(level)} is not a level", _one_of(LEVELS))
    number = logging.getLevelNamesMapping()[level.upper()]
    write = LineWriter(_stderr() if fd is None else fd)
    Logger.ours = True
    write.for_people = people = format == "text" or (format == "auto" and write.to_terminal)
    _take_over_logging(RecordHandler(write, partial(_formatter, write, people, processors)), number)
    when_imported("structlog", partial(_configure_structlog, write, people, processors, number))


def _take_over_logging(handler: RecordHandler, level: int) -> None:
    root = logging.getLogger()
    for earlier in root.handlers[:]:
        if isinstance(earlier, RecordHandler):
            root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level)


def _configure_structlog(
    write: LineWriter, people: bool, processors: Sequence[Processor], level: int
) -> None:
    import structlog

    structlog.configure(
        processors=[*_common(people, processors), *_ending(write, people)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: write,
        cache_logger_on_first_use=False,
    )


def _formatter(
    write: LineWriter, people: bool, processors: Sequence[Processor]
) -> logging.Formatter:
    import_structlog()
    from structlog.stdlib import ProcessorFormatter

    return ProcessorFormatter(
        foreign_pre_chain=_common(people, processors),
        processors=[ProcessorFormatter.remove_processors_meta, *_ending(write, people)],
    )


def _common(people: bool, processors: Sequence[Processor]) -> list[Processor]:
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        *processors,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if people else "iso", utc=not people, key="timestamp"
        ),
        structlog.processors.format_exc_info,
        _without_bytes,
    ]


def _ending(write: LineWriter, people: bool) -> list[Processor]:
    return _for_people(write) if people else _for_machines()


def _for_machines() -> list[Processor]:
    from structlog.processors import JSONRenderer

    # JSON escapes control characters and everything that is not ASCII.
    return [_ordered, JSONRenderer(default=_text)]


def _for_people(write: LineWriter) -> list[Processor]:
    from structlog.dev import ConsoleRenderer, plain_traceback

    renderer = ConsoleRenderer(
        colors=write.to_terminal and not os.environ.get("NO_COLOR"),
        # The default shows local variables, and so message bodies.
        exception_formatter=plain_traceback,
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
    """Write a value for a readable line: a list of names without Python's brackets and quotes."""
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
