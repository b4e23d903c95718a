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

#: Takes a task ('' for a body that calls none) and what the body holds (bytes if it is not JSON); returns what a page
#: shows.
Redact = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text, and a note about it: that it is closed, cut, or not text."""

    text: str
    note: str = ""


def show_body(message: Stored, redact: Redact | None) -> Body:
    """Write a body; one that cannot be opened here stays closed, as does one on which the hook fails."""
    if message.unreadable:
        return Body("", message.closed)
    return _show(message.task, message.body, redact)


def show_value(value: bytes, task: str, redact: Redact | None) -> Body:
    """Write a value that a task returned or recorded, through the hook too; nothing if the task is unknown by now."""
    if redact is not None and not task:
        return Body(
            "", "not shown: its task is not known any more, so the redaction hook cannot decide"
        )
    return _show(task, value, redact)


def _show(task: str, data: bytes, redact: Redact | None) -> Body:
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
        return _binary(content)
    try:
        text = (
            content
            if isinstance(content, str)
            else json.dumps(content, indent=2, ensure_ascii=False, default=str)
        )
    except (ValueError, RecursionError):
        return Body("", "not shown: it cannot be written as JSON")
    if len(text) > _SHOWN:
        return Body(text[:_SHOWN], f"cut: these are {_SHOWN:,} of {len(text):,} characters")
    return Body(text)


def _binary(data: bytes) -> Body:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        note = f"{size(len(data))} of binary data" + (
            f", cut at {_BYTES} bytes" if len(data) > _BYTES else ""
        )
        return Body(data[:_BYTES].hex(" "), note)
    if len(text) > _SHOWN:
        return Body(text[:_SHOWN], f"cut: these are {_SHOWN:,} of {len(text):,} characters")
    return Body(text, "not JSON")
