"""Threads and processes that handlers leave behind.

The thread of a child that waits for its supervisor checks for them, so that a batch costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.clock import boot_time
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board

__all__ = ["EVERY_S", "Leaks"]

_log = guarded(__name__)

EVERY_S: Final = 30.0
#: Our own threads, and those of the pool of an event loop for `asyncio.to_thread`, which stay.
_EXPECTED: Final = ("qworker-", "asyncio_", "uvloop_")
_MAX_NAMES: Final = 10


class Leaks:
    """Logs threads and processes that handlers leave behind, whenever there are more than before.

    Those that exist when this is made, before the first handler, belong to the app.
    """

    def __init__(self, board: Board, *, clock: Callable[[], float] = boot_time) -> None:
        #: How often `check` should be called.
        self.every_s = EVERY_S
        self._board = board
        self._clock = clock
        #: Threads, and not their idents, which are used again.
        self._first = {*threading.enumerate()}
        self._first_processes = _processes()
        self._threads: set[threading.Thread] = set()
        self._processes: set[int] = set()
        self._checked_at = float("inf")
        self._reported = 0

    def check(self) -> None:
        """Check once. Left behind is what existed at the last check, if every running handler has begun since."""
        # First: what begins from now on did not exist at the last check.
        begun = min((view.started for view in self._board.running.views()), default=self._clock())
        threads = {
            thread
            for thread in threading.enumerate()
            if thread not in self._first and not thread.name.startswith(_EXPECTED)
        }
        processes = _processes() - self._first_processes
        if begun > self._checked_at:
            self._report(threads & self._threads, processes & self._processes)
        self._threads, self._processes = threads, processes
        self._checked_at = self._clock()

    def _report(self, threads: set[threading.Thread], processes: set[int]) -> None:
        if len(threads) + len(processes) <= self._reported:
            return
        self._reported = len(threads) + len(processes)
        _log.warning(
            "handler_left_behind",
            threads=len(threads),
            processes=len(processes),
            names=sorted({thread.name for thread in threads})[:_MAX_NAMES],
            pids=sorted(processes)[:_MAX_NAMES],
        )


def _processes() -> set[int]:
    """The children of this process that have not ended; none without the /proc of Linux.

    Not with psutil, which reads every process of the host, and which children do not import.
    """
    pids = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            pids |= {int(pid) for pid in path.read_text().split()}
    return {pid for pid in pids if not _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie: `subprocess` collects those when it starts another process."""
    try:
        # The state follows the name, which is in brackets and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] in ("Z", "X", "")
    except OSError:
        return True
