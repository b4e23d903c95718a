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

__all__ = ["catch_crashes", "last_words", "named", "slot_of"]

F = TypeVar("F", bound=Callable[..., object])

_SLOT: Final = "qworker_slot_{}"
_SLOT_LINE: Final = re.compile(r" in qworker_slot_([0-9]{1,6})$", re.MULTILINE)
#: The stack of the thread that crashed ends where that of another one, or of the C code, begins.
_OTHER: Final = re.compile(
    r"^(?:Thread 0x|Extension modules|Current thread's C stack)", re.MULTILINE
)
_MAX_BYTES: Final = 16_384


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
