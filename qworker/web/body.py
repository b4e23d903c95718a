"""Bodies of messages as a page shows them: through the hook of the application, indented, cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.errors import InvalidError
from qworker.formats import size
from qworker.wire.codec import decode

if TYPE_CHECKING:
    from qworker.client.message import Stored

__all__ = ["Body", "Redact", "show_body", "show_value"]

_log = structlog.get_logger(__name__)

#: Characters of a body on a page.
_SHOWN: Final = 16_384
_BYTES: Final = 512
_INDENTED: Final = json.JSONEncoder(indent=2, ensure_ascii=False, default=str)

#: Takes a task ('' for a body that calls none) and what the body holds (bytes if it is not JSON); returns what a page
#: shows.
Redact = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text, and a note about it: that it is closed, cut, or not text. `cut`: the text is a part of it."""

    text: str
    note: str = ""
    cut: bool = False


def show_body(message: Stored, redact: Redact | None, most: int = _SHOWN) -> Body:
    """Write the first `most` characters of a body, whatever its size, in the time that these take.

    One that cannot be opened here stays closed, as does one on which the hook fails.
    """
    if message.unreadable:
        return Body("", message.closed)
    return _show(message.task, message.body, redact, most)


def show_value(value: bytes, task: str, redact: Redact | None) -> Body:
    """Write a value that a task returned or recorded, through the hook too; nothing if the task is unknown by now."""
    if redact is not None and not task:
        return Body(
            "", "not shown: its task is no longer known, so the redaction hook cannot decide"
        )
    return _show(task, value, redact, _SHOWN)


def _show(task: str, data: bytes, redact: Redact | None, most: int) -> Body:
    try:
        content: Any = decode(data)
    except InvalidError:
        content = data
    if redact is not None:
        try:
            content = redact(task, content)
        except Exception:  # noqa: BLE001  the application's code: what it did not pass is not shown
            _log.exception("redact_failed", task=task)
            return Body("", "not shown: the redaction hook has failed, see the log")
    if isinstance(content, bytes):
        return _binary(content, most)
    try:
        text = content if isinstance(content, str) else _indented(content, most)
    except (ValueError, RecursionError):
        return Body("", "not shown: it cannot be written as JSON")
    return _cut(text, most, data)


def _indented(content: Any, most: int) -> str:
    """Write JSON until it has more than `most` characters: a body of 4 MiB takes most of a second to indent."""
    parts, length = [], 0
    for part in _INDENTED.iterencode(content):
        parts.append(part)
        length += len(part)
        if length > most:
            break
    return "".join(parts)


def _cut(text: str, most: int, data: bytes, note: str = "") -> Body:
    if len(text) <= most:
        return Body(text, note)
    return Body(text[:most], f"cut: these are {most:,} characters of {size(len(data))}", cut=True)


def _binary(data: bytes, most: int) -> Body:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        note = f"{size(len(data))} of binary data" + (
            f", cut at {_BYTES} bytes" if len(data) > _BYTES else ""
        )
        return Body(data[:_BYTES].hex(" "), note, cut=len(data) > _BYTES)
    return _cut(text, most, data, "not JSON")
