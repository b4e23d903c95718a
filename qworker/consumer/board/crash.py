"""The stack of a child that crashes, and which message caused it.

A segmentation fault kills the whole process, with the seven or ninety-nine handlers beside the guilty one. Python's
`faulthandler` writes the stack of the thread that crashed; here it writes behind the board, where the supervisor finds
it. And because the handlers of each slot run under a frame with that slot's name, the stack names the message: that one
is nacked, and the others go back uncounted.
"""

from __future__ import annotations

import faulthandler
import os
import re
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Final, TypeVar, cast

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board

__all__ = ["catch_crashes", "cause_of", "crash_stack", "handler_stack", "named", "slot_of"]

F = TypeVar("F", bound=Callable[..., object])

_SLOT: Final = "qworker_slot_{}"
_SLOT_LINE: Final = re.compile(r" in qworker_slot_([0-9]{1,6})$", re.MULTILINE)
#: The stack of the thread that crashed ends before that of another thread, or of C code.
_OTHER: Final = re.compile(
    r"^(?:Thread 0x|Extension modules|Current thread's C stack)", re.MULTILINE
)
_MAX_BYTES: Final = 16_384
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>[0-9]+) in (?P<name>.*)$', re.M)
_OURS: Final = re.compile(r'^  File ".*/qworker/consumer/', re.MULTILINE)
#: Python's own library, and installed packages.
_PYTHON: Final = re.compile(
    r"^<frozen |/lib(?:64)?/python3(?:\.[0-9]+t?)?/(?!site-packages/|dist-packages/)"
)
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/")


def named(function: F, slot: int) -> F:
    """Copy a function so that its frames have the name of a slot."""
    original = cast(FunctionType, function)
    name = _SLOT.format(slot)
    copy = FunctionType(
        original.__code__.replace(co_name=name, co_qualname=name),
        original.__globals__,
        name,
        original.__defaults__,
        original.__closure__,
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    return cast(F, copy)


def catch_crashes(board: Board) -> None:
    """Have the stack of a crash written behind the board."""
    # Nothing else uses the position of the descriptor.
    os.lseek(board.descriptor, board.size, os.SEEK_SET)
    faulthandler.enable(board.descriptor, all_threads=False)


def crash_stack(board: Board) -> str:
    """The stack that a dead child has left behind its board; '' if none."""
    return os.pread(board.descriptor, _MAX_BYTES, board.size).decode("utf-8", "replace").strip()


def slot_of(written: str) -> int | None:
    """The slot whose handler crashed; None if its stack does not say."""
    line = _SLOT_LINE.search(_OTHER.split(written)[0])
    return int(line[1]) if line else None


def handler_stack(written: str) -> str:
    """The frames of the handler that crashed."""
    stack = _OTHER.split(written)[0].rstrip()
    ours = _OURS.search(stack)
    above = stack[: ours.start()].rstrip() if ours else stack
    return above if _FRAME.search(above) else stack


def cause_of(written: str) -> str:
    """Describe the crash and its frame in the app in one line; '' without a stack.

    The frame is the innermost one outside of installed packages; of an app that is installed, that of the handler.
    """
    stack = handler_stack(written)
    head = stack.partition("\n")[0].strip()
    frames = [frame for frame in _FRAME.finditer(stack) if not _PYTHON.search(frame["file"])]
    if not frames:
        return head
    inner = next((frame for frame in frames if not _INSTALLED.search(frame["file"])), frames[-1])
    file = inner["file"].rpartition("/")[2]
    return f"{head} in {inner['name']} ({file}:{inner['line']})"
