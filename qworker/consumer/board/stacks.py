"""The stacks of a child's threads, without its help: even while a handler holds the GIL, or hangs in C.

On a signal Python's `faulthandler` writes the stack of every thread into a file that the supervisor shares. Each slot's
handlers run under a frame with that slot's name (see crash.py), so a stack says whose it is.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

__all__ = [
    "END_OF_STACKS",
    "MAX_STACKS_BYTES",
    "STACK_SIGNAL",
    "show_stacks",
    "stack_of",
    "write_stacks",
]

#: A signal that has no other use: not SIGUSR1 or SIGUSR2, which belong to the app.
STACK_SIGNAL: Final[int] = (
    signal.SIGRTMIN + 7 if sys.platform == "linux" else getattr(signal, "SIGINFO", signal.SIGUSR2)
)
MAX_STACKS_BYTES: Final = 256 * 1024
_MAX_FRAMES: Final = 100
#: The last line of stacks that a child has written itself.
END_OF_STACKS: Final = "that is all"

_BLOCK: Final = re.compile(r"^(?=(?:Current thread|Thread) 0x|Coroutine of slot)", re.MULTILINE)
_OURS: Final = re.compile(r'^  File ".*[/\\]qworker[/\\]consumer[/\\]', re.MULTILINE)


def show_stacks(descriptor: int) -> None:
    """Write the stacks of all threads to a file at each `STACK_SIGNAL`."""
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)


def write_stacks(descriptor: int, coroutines: Iterable[tuple[int, Any]]) -> None:
    """Write the stacks of all other threads of this process, and of coroutines that wait, by their slots."""
    lines = []
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            lines.append(f"Thread 0x{thread:x} (most recent call first):")
            lines += [_line(caller) for caller, _ in traceback.walk_stack(frame)]
            lines.append("")
    for slot, coroutine in coroutines:
        lines.append(f"Coroutine of slot {slot} (most recent call first):")
        lines += [_line(frame) for frame in reversed(_awaited(coroutine))]
        lines.append("")
    text = "\n".join(lines)[: MAX_STACKS_BYTES // 4]
    os.pwrite(descriptor, f"{text}\n{END_OF_STACKS}\n".encode("utf-8", "backslashreplace"), 0)


def _awaited(coroutine: Any) -> list[FrameType]:
    """The frames of a coroutine that waits and of those it waits for, the outermost first."""
    frames: list[FrameType] = []
    while coroutine is not None and len(frames) < _MAX_FRAMES:
        kind = next(
            (prefix for prefix in ("cr", "gi", "ag") if hasattr(coroutine, f"{prefix}_frame")), None
        )
        if kind is None:
            break
        if (frame := getattr(coroutine, f"{kind}_frame")) is not None:
            frames.append(frame)
        coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return frames


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'


def stack_of(stacks: str, slot: int) -> str:
    """The frames of the handler in a slot, the most recent first, without ours; '' if it has none.

    A coroutine that waits has none. If its event loop is held up, the loop's frames say why it is late.
    """
    blocks = _BLOCK.split(stacks)
    waits = re.compile(rf"^Coroutine of slot {slot} ")
    named = re.compile(rf" in qworker_slot_{slot}$", re.MULTILINE)
    for wanted in (waits, named, _INLINE, _LOOP):
        for block in blocks:
            if wanted.search(block):
                _, _, frames = block.partition("\n")
                ours = _OURS.search(frames)
                return frames[: ours.start() if ours else None].rstrip()
    return ""


#: Handlers of the only slot run in the main thread; those of a loop under it.
_INLINE: Final = re.compile(r'handlers[/\\]inline\.py", line \d+ in submit$', re.MULTILINE)
_LOOP: Final = re.compile(r'handlers[/\\]event_loop\.py", line \d+ in _main$', re.MULTILINE)
