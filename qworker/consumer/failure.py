"""Turns errors of handlers into text for dead letters and the log.

They are the user's: their `str` may raise, hang in a loop of causes, or be as long as the body that they quote.
"""

from __future__ import annotations

import traceback
from typing import Final

__all__ = ["MAX_CHARACTERS", "failure_text", "name_of", "text_of"]

#: Characters of an error that a dead letter keeps.
MAX_CHARACTERS: Final = 2048
_MESSAGE_CHARACTERS: Final = 1000
_FRAMES: Final = 8


_NAME_OF_TYPE: Final = type.__dict__["__name__"].__get__


def name_of(error: BaseException) -> str:
    """The name of an error's class, in at most 200 characters."""
    # Not as an attribute, which a metaclass may redefine.
    return str(_NAME_OF_TYPE(type(error)))[:200]


def text_of(value: object) -> str:
    """A value that a handler gave as text, such as a reason, in at most `MAX_CHARACTERS` of valid UTF-8."""
    try:
        return _storable(str(value)[:MAX_CHARACTERS])
    except BaseException:  # noqa: BLE001 - code of the user's class
        return "(its text cannot be shown)"


def failure_text(error: BaseException) -> str:
    """The end of the traceback and the error's message, in at most `MAX_CHARACTERS` of valid UTF-8."""
    try:
        return _storable(_failure_text(error))
    except BaseException:  # noqa: BLE001 - code of the user's class
        return f"{name_of(error)} (its text cannot be shown)"


def _failure_text(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error, limit=-_FRAMES)).rstrip()
    if len(text) <= MAX_CHARACTERS:
        return text
    # Of a long message the beginning matters most, of the frames the last ones.
    message = "".join(traceback.format_exception_only(error)).rstrip()
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[: _MESSAGE_CHARACTERS - 3] + "..."
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-_FRAMES))
    return frames[-(MAX_CHARACTERS - len(message)) :] + message


def _storable(text: str) -> str:
    """Escape characters that UTF-8 cannot encode, such as a lone surrogate of a file name."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]
