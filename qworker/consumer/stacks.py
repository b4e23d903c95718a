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
import time
from typing import Final

__all__ = ["STACKS_S", "STACK_SIGNAL", "ask_for_stacks", "read_stacks", "show_stacks", "stack_of"]

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

_BLOCK: Final = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
_OURS: Final = re.compile(r'^  File ".*[/\\]qworker[/\\]consumer[/\\]', re.MULTILINE)


def show_stacks(descriptor: int) -> None:
    """Write the stacks of all threads to a file at each `STACK_SIGNAL`."""
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)


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
    return os.pread(descriptor, _MAX_BYTES, 0).decode("utf-8", "replace").strip()


def stack_of(stacks: str, slot: int) -> str:
    """The frames of the handler in a slot, the most recent first, as far as they are not ours; '' if it has none.

    A coroutine that waits has none. If its event loop is held up, that is why it is late: the loop's frames are it.
    """
    blocks = _BLOCK.split(stacks)
    named = re.compile(rf" in qworker_slot_{slot}$", re.MULTILINE)
    for wanted in (named, _INLINE, _LOOP):
        for block in blocks:
            if wanted.search(block):
                _, _, frames = block.partition("\n")
                ours = _OURS.search(frames)
                return frames[: ours.start() if ours else None].rstrip()
    return ""


#: Handlers of the only slot run in the main thread; those of a loop under it.
_INLINE: Final = re.compile(r'executors\.py", line \d+ in submit$', re.MULTILINE)
_LOOP: Final = re.compile(r'executors\.py", line \d+ in _main$', re.MULTILINE)
