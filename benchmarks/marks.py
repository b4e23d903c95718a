"""When each job started, noted in a file that all processes map: 0.2 µs a job, and nothing that a server sees.

Standard library only: the drivers of peers import this in environments without qworker.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

__all__ = ["Marks"]

_SIZE = 8


class Marks:
    """Monotonic seconds at which job 0, 1, … started; 0 for one that has not."""

    def __init__(self, path: Path) -> None:
        """Map a file that `create` has made."""
        with path.open("r+b") as file:
            self._times: memoryview[float] = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    @classmethod
    def create(cls, path: Path, jobs: int) -> Marks:
        """Make the file for this many jobs; one that exists is emptied."""
        path.write_bytes(bytes(_SIZE * jobs))
        return cls(path)

    def started(self, number: int) -> None:
        """Note that a job starts now."""
        self._times[number] = time.monotonic()

    def times(self, first: int = 0) -> list[float]:
        """Give the times of the jobs from `first` on."""
        return [*self._times[first:]]

    def steady_rate(self, at_once: int, first: int = 0) -> float:
        """Starts per second of the jobs from `first` on after those `at_once` that start before any has ended."""
        times = self.times(first)
        return (len(times) - at_once) / (max(times) - min(times))

    def missing(self, first: int = 0) -> int:
        """Count the jobs from `first` on that have not started."""
        return self.times(first).count(0.0)
