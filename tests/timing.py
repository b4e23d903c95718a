"""Time in tests: a deadline for all, a clock that stands, and a watch that stops while its processes wait for a core.

    watch = Watch(server.pid, worker.process.pid)
    …
    assert watch.passed_s() < 1.0

A promised time is kept or not by what processes do. On a machine with more to do than cores they also stand in line,
for as long as others like; the system's scheduler keeps an account of that, thread by thread.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

__all__ = ["DEADLINE_S", "Clock", "Watch"]

#: Nothing that a test waits for takes longer than this, on any machine.
DEADLINE_S = 60.0


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Read it, in seconds."""
        return self.now_s


class Watch:
    """Seconds since it was made, without those in which a thread of `pids` could have run and had no core.

    At least that: where several waited at once, each counts. Where the system keeps no account nothing is left out.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._waited = self._read()
        self._begun = time.monotonic()

    def passed_s(self) -> float:
        """Read the watch."""
        now_s, waited = time.monotonic(), self._read()
        return (
            now_s
            - self._begun
            - sum(
                max(0.0, waited_s - self._waited.get(thread, 0.0))
                for thread, waited_s in waited.items()
            )
        )

    def end_s(self, process: subprocess.Popen[bytes]) -> float:
        """Wait until a process has ended, and read the watch while the system still has its account."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return self.passed_s()

    def _read(self) -> dict[str, float]:
        """Seconds for which each thread has waited for a core since it began."""
        waited: dict[str, float] = {}
        for pid in self._pids:
            for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    waited[account.parent.name] = int(account.read_text().split()[1]) / 1e9
                except (OSError, IndexError):
                    continue  # the thread has ended
        return waited
