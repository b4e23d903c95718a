"""The last words of a child that crashes, and whose fault it was.

A segmentation fault kills the whole process, with the seven or ninety-nine handlers beside the guilty one. Python's
`faulthandler` writes the stack of the thread that crashed; here it writes behind the board, where the supervisor finds
it. And because each slot's handlers run under a frame of that slot's own name, the stack says which message it was:
that one is nacked, and the others go back as if nothing had happened.
"""

from __future__ import annotations

import faulthandler
import os
import re
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Final, TypeVar, cast

if TYPE_CHECKING:
    from qworker.consumer.board import Board

__all__ = ["catch_crashes", "cause_of", "handler_stack", "last_words", "named", "slot_of"]

F = TypeVar("F", bound=Callable[..., object])

_SLOT: Final = "qworker_slot_{}"
_SLOT_LINE: Final = re.compile(r" in qworker_slot_([0-9]{1,6})$", re.MULTILINE)
#: The stack of the thread that crashed ends where that of another one, or of the C code, begins.
_OTHER: Final = re.compile(
    r"^(?:Thread 0x|Extension modules|Current thread's C stack)", re.MULTILINE
)
_MAX_BYTES: Final = 16_384
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>[0-9]+) in (?P<name>.*)$', re.M)
_OURS: Final = re.compile(r'^  File ".*/qworker/consumer/', re.MULTILINE)
#: Python's own library, and what is installed beside it.
_PYTHON: Final = re.compile(
    r"^<frozen |/lib(?:64)?/python3(?:\.[0-9]+t?)?/(?!site-packages/|dist-packages/)"
)
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/")


def named(function: F, slot: int) -> F:
    """Copy a function so that its frames are called after a slot."""
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
    # Nobody else reads or writes through the descriptor, so its position is free for this.
    os.lseek(board.descriptor, board.size, os.SEEK_SET)
    faulthandler.enable(board.descriptor, all_threads=False)


def last_words(board: Board) -> str:
    """What a dead child has left behind its board; '' if nothing."""
    return os.pread(board.descriptor, _MAX_BYTES, board.size).decode("utf-8", "replace").strip()


def slot_of(words: str) -> int | None:
    """The slot whose handler crashed; None where the words do not say it."""
    stack = _OTHER.split(words)[0]
    found = _SLOT_LINE.search(stack)
    return int(found[1]) if found else None


def handler_stack(words: str) -> str:
    """The stack of the handler that crashed: without frames that are not its own, and without what follows it."""
    stack = _OTHER.split(words)[0].rstrip()
    ours = _OURS.search(stack)
    above = stack[: ours.start()].rstrip() if ours else stack
    return above if _FRAME.search(above) else stack


def cause_of(words: str) -> str:
    """Say in one line what the crash was and where: the innermost frame of the app; '' where there are no words.

    An app may be installed like any library: then it is the frame of the handler itself.
    """
    stack = handler_stack(words)
    head = stack.partition("\n")[0].strip()
    frames = [found for found in _FRAME.finditer(stack) if not _PYTHON.search(found["file"])]
    if not frames:
        return head
    inner = next((each for each in frames if not _INSTALLED.search(each["file"])), frames[-1])
    file = inner["file"].rpartition("/")[2]
    return f"{head} in {inner['name']} ({file}:{inner['line']})"
