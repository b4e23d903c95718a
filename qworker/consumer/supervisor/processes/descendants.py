"""Processes that a child leaves behind: those of its session end with it, and none stays a zombie.

Each child leads a session. Processes that its handlers start belong to it and end with the child; one that is to
outlive it starts its own session (`start_new_session=True`, `setsid`, a daemon).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

__all__ = ["adopts", "end_session", "has_ended", "reap_adopted"]

_PR_GET_CHILD_SUBREAPER: Final = 37
#: Scans of a session: a process that is started during one is found by the next.
_ROUNDS: Final = 5


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child process has ended. It is not collected: its pid stays taken (but on macOS before Python 3.13)."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll() is not None
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return ended is not None


def end_session(leader: int) -> int:
    """Kill the rest of the session of an ended process; returns the number of processes killed.

    Reads every process of the host.
    """
    import psutil  # here: children start before it is imported

    killed: set[int] = set()
    for _ in range(_ROUNDS):
        members = {pid for pid in psutil.pids() if pid != leader and _session_of(pid) == leader}
        if members <= killed:
            break
        for pid in members - killed:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= members
    return len(killed)


def adopts() -> bool:
    """Whether this process gets the orphans of its descendants: as PID 1 of a container, or as a subreaper."""
    if os.getpid() == 1:
        return True
    if sys.platform != "linux":
        return False
    is_subreaper = ctypes.c_int(0)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper))
    return bool(is_subreaper.value)


def reap_adopted(own: Iterable[int]) -> int:
    """Collect ended processes that were not started here; returns how many. `own`: pids collected elsewhere."""
    own, reaped = set(own), 0
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if ended is None or ended.si_pid in own:
            return reaped
        with suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
        reaped += 1


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
