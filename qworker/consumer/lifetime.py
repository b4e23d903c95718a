"""How to start a process that holds user code, and how it ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import Final

__all__ = ["command_of", "die_with_parent", "environment_with", "flush_streams"]

_PR_SET_PDEATHSIG: Final = 1


def command_of(module: str) -> list[str]:
    """Return the command that runs one of our modules in an interpreter like this one."""
    # As multiprocessing does: -O, -W and -X apply to children too.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # -P: we import nothing from the current directory, see app_names.
    return [sys.executable, *flags, "-P", "-m", module]


def environment_with(variable: str, value: str) -> dict[str, str]:
    """Return the environment of such a process, with one more variable."""
    # What a handler prints appears at once, and not when the child ends.
    return {"PYTHONUNBUFFERED": "1", **os.environ, variable: value}


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends, even while a handler holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it had ended already


def flush_streams() -> None:
    """Write out what user code has printed, before an `os._exit`."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed, by its reader or by a handler
