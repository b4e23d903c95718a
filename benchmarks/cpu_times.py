"""CPU seconds of this process and all that it started, by contender."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil

__all__ = ["CpuTimes"]


class CpuTimes:
    """CPU seconds of this process and all that it started: what a busy machine does not falsify."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def of(self, name: str, run: Callable[..., float], *words: object) -> Callable[[], float]:
        """Return a function that runs, and notes what it took under `name`."""

        def measured() -> float:
            before = self._now()
            rate = run(*words)
            self.seconds.setdefault(name, []).append(self._now() - before)
            return rate

        return measured

    @staticmethod
    def _now() -> float:
        me, total = psutil.Process(), 0.0
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() not in ("redis-server", "valkey-server"):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total
