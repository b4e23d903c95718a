"""What handlers leave behind: threads and processes that are there although no handler runs that could have begun them.

Looked for by the thread of a child that waits for its supervisor's word, so that a batch costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qworker.consumer.board import boot_time
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.board import Board

__all__ = ["EVERY_S", "Leftovers"]

_log = guarded(__name__)

EVERY_S: Final = 30.0
#: Threads of ours, and of the pool in which an event loop has `asyncio.to_thread` done: it keeps them.
_EXPECTED: Final = ("qworker-", "asyncio_")
_MOST_NAMES: Final = 10


class Leftovers:
    """Tells of threads and processes that stay behind, each time there are more than ever before.

    What was there when this was made, before the first handler, belongs to the app.
    """

    def __init__(self, board: Board, *, clock: Callable[[], float] = boot_time) -> None:
        #: Seconds between two looks that whoever calls `look` should leave.
        self.every_s = EVERY_S
        self._board = board
        self._clock = clock
        #: By thread, and not by its ident: those of ended threads are given out again.
        self._first = {*threading.enumerate()}
        self._first_processes = _processes()
        self._threads: set[threading.Thread] = set()
        self._processes: set[int] = set()
        self._looked_at = float("inf")
        self._told = 0

    def look(self) -> None:
        """Look once. What was there at the last look too, while every handler has begun since, is left behind."""
        # Before the rest: what begins meanwhile is not there at the last look.
        begun = min((each.started for each in self._board.running()), default=self._clock())
        threads = {
            each
            for each in threading.enumerate()
            if each not in self._first and not each.name.startswith(_EXPECTED)
        }
        processes = _processes() - self._first_processes
        if begun > self._looked_at:
            self._tell(threads & self._threads, processes & self._processes)
        self._threads, self._processes = threads, processes
        self._looked_at = self._clock()

    def _tell(self, threads: set[threading.Thread], processes: set[int]) -> None:
        if len(threads) + len(processes) <= self._told:
            return
        self._told = len(threads) + len(processes)
        _log.warning(
            "handler_left_behind",
            threads=len(threads),
            processes=len(processes),
            names=sorted({each.name for each in threads})[:_MOST_NAMES],
            pids=sorted(processes)[:_MOST_NAMES],
        )


def _processes() -> set[int]:
    """The children of this process that have not ended; none where Linux' /proc does not tell.

    Not by psutil, which reads every process of the host, and which children do without.
    """
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found |= {int(pid) for pid in path.read_text().split()}
    return {pid for pid in found if not _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be collected: `subprocess` does that when it begins another one."""
    try:
        # The state stands behind the name, which is in brackets and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] in ("Z", "X", "")
    except OSError:
        return True
