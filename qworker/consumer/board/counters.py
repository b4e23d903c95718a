"""Counters of each task's handlers, in the memory of a board.

A block of words per task: outcomes, then two histograms (run time, wait time), each with the sum of its seconds. The
child adds a batch at a time; the supervisor may read at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Self

import msgspec

__all__ = [
    "ACKED",
    "BUCKETS",
    "BUCKETS_S",
    "CANCELLED",
    "COUNTERS_BYTES",
    "CRASHED",
    "FAILURES",
    "MAX_TASKS",
    "NACKED",
    "OTHER",
    "OUTCOMES",
    "RELEASED",
    "TIME_LIMIT",
    "TaskCounters",
    "TaskCounts",
]

#: Tasks with their own counters; those beyond it share the last block.
MAX_TASKS: Final = 4096
#: Outcomes counted per task, in this order.
OUTCOMES: Final = (
    "acked", "nacked", "buried", "released", "discarded", "expired", "crashed", "time_limit", "cancelled",
)  # fmt: skip
#: Outcomes that a supervisor counts for a dead child.
ACKED, NACKED, RELEASED, CRASHED, TIME_LIMIT, CANCELLED = (
    OUTCOMES[number] for number in (0, 1, 3, 6, 7, 8)
)
#: Outcomes of failed handlers.
FAILURES: Final = ("nacked", "buried", CRASHED, TIME_LIMIT)
#: Unknown tasks, and those without their own counters, are counted under this name.
OTHER: Final = "__other__"
#: Upper bounds of the histogram buckets in seconds; the last bucket has none.
BUCKETS_S: Final = (
    *(0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0),
)
BUCKETS: Final = len(BUCKETS_S) + 1

_TASK_WORDS: Final = 64
# Where the histograms begin in a block; the sum of seconds is behind the buckets.
_RUN_AT: Final = len(OUTCOMES)
_WAIT_AT: Final = _RUN_AT + BUCKETS + 1
COUNTERS_BYTES: Final = MAX_TASKS * _TASK_WORDS * 8


class TaskCounts(msgspec.Struct):
    """Counts of one task: outcomes, and two histograms with the sum of their seconds."""

    outcomes: list[int]
    run: list[int]
    run_s: float
    wait: list[int]
    wait_s: float

    @classmethod
    def none(cls) -> Self:
        """Make counts of zero."""
        return cls([0] * len(OUTCOMES), [0] * BUCKETS, 0.0, [0] * BUCKETS, 0.0)

    def add_runs(self, runs_s: list[float]) -> None:
        """Count the run times of a batch, in seconds."""
        _fill(self.run, runs_s)
        self.run_s += sum(runs_s)

    def add_waits(self, waits_s: list[float]) -> None:
        """Count the wait times of a batch, in seconds."""
        _fill(self.wait, waits_s)
        self.wait_s += sum(waits_s)

    def __iadd__(self, other: TaskCounts) -> Self:
        """Add the counts of another process."""
        _add(self.outcomes, other.outcomes)
        _add(self.run, other.run)
        _add(self.wait, other.wait)
        self.run_s += other.run_s
        self.wait_s += other.wait_s
        return self

    def __bool__(self) -> bool:
        return any(self.outcomes)


class TaskCounters:
    """The blocks of all tasks, by the task's number in the manifest."""

    def __init__(self, words: memoryview[int], floats: memoryview[float], at: int) -> None:
        self._words = words
        self._floats = floats
        self._at = at

    def outcomes_at(self, task: int) -> int:
        """The index of a task's outcomes, in words."""
        return self._task_at(task)

    def add_times(self, task: int, counts: TaskCounts) -> None:
        """Add a batch's times to those of a task."""
        at = self._task_at(task)
        words, floats = self._words, self._floats
        for first, amounts in ((at + _RUN_AT, counts.run), (at + _WAIT_AT, counts.wait)):
            for number, amount in enumerate(amounts):
                if amount:
                    words[first + number] += amount
        floats[at + _RUN_AT + BUCKETS] += counts.run_s
        floats[at + _WAIT_AT + BUCKETS] += counts.wait_s

    def read(self, task: int) -> TaskCounts:
        """Copy the counts of a task."""
        at = self._task_at(task)
        run, wait = at + _RUN_AT, at + _WAIT_AT
        words, floats = self._words, self._floats
        return TaskCounts(
            list(words[at : at + len(OUTCOMES)]),
            list(words[run : run + BUCKETS]),
            floats[run + BUCKETS],
            list(words[wait : wait + BUCKETS]),
            floats[wait + BUCKETS],
        )

    def _task_at(self, task: int) -> int:
        return self._at + min(task, MAX_TASKS - 1) * _TASK_WORDS


def _fill(buckets: list[int], values: list[float]) -> None:
    """Count values into the buckets of `BUCKETS_S`: sorted, so that each bucket takes a search, and not each value."""
    values.sort()
    counted = 0
    for number, bound in enumerate(BUCKETS_S):
        within = bisect_right(values, bound)
        buckets[number] += within - counted
        counted = within
        if counted == len(values):
            return
    buckets[-1] += len(values) - counted


def _add(total: list[int], amounts: Sequence[int]) -> None:
    for number, amount in enumerate(amounts):
        total[number] += amount
