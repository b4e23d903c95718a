"""Asks children for their stacks, and makes those that do not answer write them, see `board/stacks.py`."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from qworker.consumer.board.stacks import END_OF_STACKS, MAX_STACKS_BYTES, STACK_SIGNAL
from qworker.consumer.manifest import STACKS
from qworker.consumer.supervisor.processes.descendants import has_ended

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board

__all__ = ["ChildStacks", "collect_stacks"]

#: How long to wait for stacks. A thread that is stuck in the kernel never writes its own.
_STACKS_S: Final = 0.3
#: A file that has not grown for this long is complete.
_QUIET_S: Final = 0.02
_CHECK_S: Final = 0.005
#: How long children have to answer, and how many of those that do not are made to write their stacks.
_ANSWER_S: Final = 0.5
_MAX_DUMPS: Final = 8


class ChildStacks:
    """The stacks of one child: a file that it shares, and writes when it is asked over its control socket."""

    def __init__(
        self,
        descriptor: int,
        process: subprocess.Popen[bytes],
        board: Board,
        control: socket.socket,
    ) -> None:
        self._descriptor = descriptor
        self._process = process
        self._board = board
        self._control = control
        #: A time limit may end the child while an operator asks for its stacks.
        self._lock = threading.Lock()

    def dump(self) -> str:
        """Return the Python stacks of its threads, even if they hang; '' if they do not come in time."""
        thread = self._board.stacks_thread
        if not 0 < thread < 2**31 or has_ended(self._process):
            return ""
        with self._lock:
            self._empty()
            _signal(self._process.pid, thread)
            return self._read_written().strip()

    def ask(self) -> bool:
        """Ask it for its stacks, which `answer` returns in a moment; False if it cannot be asked."""
        if not self._board.stacks_thread or has_ended(self._process):
            return False
        with self._lock:
            self._empty()
        try:
            self._control.send(STACKS)
        except OSError:
            return False  # it has ended
        return True

    def answer(self) -> str | None:
        """Return the text written since `ask`; None if it is incomplete."""
        text = self._read().rstrip()
        return text.removesuffix(END_OF_STACKS) if text.endswith(END_OF_STACKS) else None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _empty(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def _read_written(self) -> str:
        """Read text while it is written to the file, which was empty before; '' if none comes."""
        size, deadline = 0, time.monotonic() + _STACKS_S
        grown = time.monotonic()
        while (now := time.monotonic()) < deadline:
            written = os.fstat(self._descriptor).st_size
            if written != size:
                size, grown = written, now
            elif size and now - grown > _QUIET_S:
                break
            time.sleep(_CHECK_S)
        return self._read()

    def _read(self) -> str:
        return os.pread(self._descriptor, MAX_STACKS_BYTES, 0).decode("utf-8", "replace")


class HasStacks(Protocol):
    """A child process that can be asked for its stacks. `killed`: why it was killed, or ''."""

    stacks: ChildStacks
    killed: str

    @property
    def pid(self) -> int:
        """Its process id."""


def collect_stacks(children: Iterable[HasStacks]) -> dict[int, str]:
    """Return the stacks of children by pid. Each is asked first, and made to write them if it does not answer.

    Takes up to half a second for those that answer, and 0.3 s for each of up to `_MAX_DUMPS` others.
    """
    asked = [child for child in children if not child.killed and child.stacks.ask()]
    stacks: dict[int, str] = {}
    deadline = time.monotonic() + _ANSWER_S
    while len(stacks) < len(asked) and time.monotonic() < deadline:
        for child in asked:
            if child.pid not in stacks and (answer := child.stacks.answer()) is not None:
                stacks[child.pid] = answer
        time.sleep(_CHECK_S)
    silent = [child for child in asked if child.pid not in stacks]
    for child in silent[:_MAX_DUMPS]:
        stacks[child.pid] = child.stacks.dump()
    return stacks


def _signal(pid: int, thread: int) -> None:
    """Signal one thread of a process, by its native id, to write all stacks.

    If possible not the thread of a handler: C calls that a signal interrupts return early or fail.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "tgkill"):
        libc.tgkill(pid, thread, STACK_SIGNAL)
    else:
        os.kill(pid, STACK_SIGNAL)
