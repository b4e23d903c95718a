"""Turns errors of handlers into text for dead letters and the log.

They are the user's: their `str` may raise, hang in a loop of causes, or be as long as the body that they quote.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Final

__all__ = ["MAX_CHARACTERS", "failure_text", "name_of", "text_of"]

#: Characters of an error that a dead letter keeps.
MAX_CHARACTERS: Final = 2048
_MESSAGE_CHARACTERS: Final = 1000
_FRAMES: Final = 8
#: Where the files lie that call handlers.
_OURS: Final = os.path.dirname(__file__) + os.sep


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


def failure_text(error: BaseException, *, of_handler: bool = False) -> str:
    """The end of the traceback and the error's message, in at most `MAX_CHARACTERS` of valid UTF-8.

    `of_handler`: begin at the handler, without the frames that called it.
    """
    try:
        return _storable(_failure_text(error, of_handler=of_handler))
    except BaseException:  # noqa: BLE001 - code of the user's class
        return f"{name_of(error)} (its text cannot be shown)"


def _failure_text(error: BaseException, *, of_handler: bool) -> str:
    frames = _from_handler(error.__traceback__) if of_handler else error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, frames, limit=-_FRAMES)).rstrip()
    if len(text) <= MAX_CHARACTERS:
        return text
    # Of a long message the beginning matters most, of the frames the last ones.
    message = "".join(traceback.format_exception_only(error)).rstrip()
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[: _MESSAGE_CHARACTERS - 3] + "..."
    lines = "".join(traceback.format_tb(frames, limit=-_FRAMES))
    return lines[-(MAX_CHARACTERS - len(message)) :] + message


def _from_handler(frames: TracebackType | None) -> TracebackType | None:
    """Leave out our frames at the top; all of them if there are no others, as the error is ours then."""
    frame = frames
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return frame or frames


def _storable(text: str) -> str:
    """Escape characters that UTF-8 cannot encode, such as a lone surrogate of a file name."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]
