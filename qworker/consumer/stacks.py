"""Where the threads of a child are, without its help: also while a handler holds the GIL, or hangs in C.

On a signal Python's `faulthandler` writes the stack of every thread into a file that the supervisor shares. Each slot's
handlers run under a frame of that slot's own name (see crash.py), so a stack says whose it is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from qworker.consumer.process import ChildProcess

__all__ = [
    "STACKS_S",
    "STACK_SIGNAL",
    "ask_for_stacks",
    "collect",
    "read_file",
    "read_stacks",
    "show_stacks",
    "stack_of",
    "write_stacks",
]

#: One that nobody else uses: not SIGUSR1 or SIGUSR2, which belong to the app.
STACK_SIGNAL: Final[int] = (
    signal.SIGRTMIN + 7 if sys.platform == "linux" else getattr(signal, "SIGINFO", signal.SIGUSR2)
)
#: How long stacks are waited for. A thread that is stuck in the kernel does not answer at all.
STACKS_S: Final = 0.3
#: What has not grown for so long is complete.
_QUIET_S: Final = 0.02
_LOOK_S: Final = 0.005
_MAX_BYTES: Final = 256 * 1024

#: How long a child is waited for that is asked for its stacks, and how many are made to tell that do not answer.
_ANSWER_S: Final = 0.5
_MADE: Final = 8
_MAX_FRAMES: Final = 100
#: The last line of what a child has written itself.
_END: Final = "that is all"

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
            lines += [_line(each) for each, _ in traceback.walk_stack(frame)]
            lines.append("")
    for slot, coroutine in coroutines:
        lines.append(f"Coroutine of slot {slot} (most recent call first):")
        lines += [_line(frame) for frame in reversed(_awaited(coroutine))]
        lines.append("")
    text = "\n".join(lines)[: _MAX_BYTES // 4]
    os.pwrite(descriptor, f"{text}\n{_END}\n".encode("utf-8", "backslashreplace"), 0)


def _awaited(coroutine: Any) -> list[FrameType]:
    """The frames of a coroutine that waits and of those it waits for, the outermost first."""
    frames: list[FrameType] = []
    while coroutine is not None and len(frames) < _MAX_FRAMES:
        kind = next(
            (each for each in ("cr", "gi", "ag") if hasattr(coroutine, f"{each}_frame")), None
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


def collect(children: Iterable[ChildProcess]) -> dict[int, str]:
    """Return the stacks of children by pid. Each is asked first, and made to tell where it does not answer.

    Takes up to half a second for those that answer and 0.3 s for each other, of which `_MADE` are waited for.
    """
    asked = [child for child in children if child.ask_for_stacks()]
    found: dict[int, str] = {}
    deadline = time.monotonic() + _ANSWER_S
    while len(found) < len(asked) and time.monotonic() < deadline:
        for child in asked:
            text = child.told_stacks()
            if child.pid not in found and text.rstrip().endswith(_END):
                found[child.pid] = text.rstrip().removesuffix(_END)
        time.sleep(_LOOK_S)
    silent = [child for child in asked if child.pid not in found]
    for child in silent[:_MADE]:
        found[child.pid] = child.dump_stacks()
    return found


def ask_for_stacks(pid: int, thread: int) -> None:
    """Signal one thread of a process, by its native id, to write all stacks: where it can be, not that of a handler.

    Calls of C that a signal interrupts come back early or fail.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "tgkill"):
        libc.tgkill(pid, thread, STACK_SIGNAL)
    else:
        os.kill(pid, STACK_SIGNAL)


def read_stacks(descriptor: int, within_s: float) -> str:
    """Read what is being written to a file, which was empty before; '' where nothing comes."""
    size, deadline = 0, time.monotonic() + within_s
    grown = time.monotonic()
    while (now := time.monotonic()) < deadline:
        written = os.fstat(descriptor).st_size
        if written != size:
            size, grown = written, now
        elif size and now - grown > _QUIET_S:
            break
        time.sleep(_LOOK_S)
    return read_file(descriptor).strip()


def read_file(descriptor: int) -> str:
    """Read what is in a file of stacks."""
    return os.pread(descriptor, _MAX_BYTES, 0).decode("utf-8", "replace")


def stack_of(stacks: str, slot: int) -> str:
    """The frames of the handler in a slot, the most recent first, as far as they are not ours; '' if it has none.

    A coroutine that waits has none. If its event loop is held up, that is why it is late: the loop's frames are it.
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
_INLINE: Final = re.compile(r'executors\.py", line \d+ in submit$', re.MULTILINE)
_LOOP: Final = re.compile(r'executors\.py", line \d+ in _main$', re.MULTILINE)
