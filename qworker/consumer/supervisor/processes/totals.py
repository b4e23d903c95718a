"""Adds up the counters of a supervisor's children, including ended ones."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.counters import FAILURES, MAX_TASKS, OTHER, OUTCOMES, TaskCounts

if TYPE_CHECKING:
    from qworker.consumer.supervisor.leases.fates import Fate
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["OTHER", "REASONS", "Totals"]

#: Why children end.
REASONS: Final = ("recycled", "crashed", "time_limit", "rss", "watchdog", "cancelled", "stopped")

Counts = dict[tuple[str, str], TaskCounts]


class Totals:
    """Holds the living children, and the sums of all. Thread-safe: a scrape may come at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[ChildProcess] = []
        self._counts: Counts = {}
        self._exits = dict.fromkeys(REASONS, 0)
        self._handled = self._failed = self._stale = 0

    @property
    def children(self) -> list[ChildProcess]:
        """The living children."""
        with self._lock:
            return list(self._children)

    def add(self, child: ChildProcess) -> None:
        """Add a child that has started."""
        with self._lock:
            self._children.append(child)

    def note_fates(self, fates: Sequence[Fate]) -> None:
        """Count messages that dead children have not counted."""
        with self._lock:
            for fate in fates:
                counts = self._counts.setdefault(fate.counted_as, TaskCounts.none())
                counts.outcomes[OUTCOMES.index(fate.outcome)] += 1
                self._handled += 1
                self._failed += fate.outcome in FAILURES

    def note_exit(self, child: ChildProcess, reason: str) -> None:
        """Count the end of a child, and keep its counts."""
        child.board.tally.finish()
        with self._lock:
            self._children.remove(child)
            self._exits[reason] += 1
            self._handled += child.board.handled
            self._failed += child.board.failed
            self._stale += child.board.stale
            _add(self._counts, child)

    @property
    def exits(self) -> dict[str, int]:
        """How many children have ended, by reason."""
        with self._lock:
            return dict(self._exits)

    @property
    def handled(self) -> int:
        """Messages whose handlers have ended."""
        with self._lock:
            return self._handled + sum(child.board.handled for child in self._children)

    @property
    def failed(self) -> int:
        """Messages whose handlers have failed."""
        with self._lock:
            return self._failed + sum(child.board.failed for child in self._children)

    @property
    def stale(self) -> int:
        """Outcomes that came too late."""
        with self._lock:
            return self._stale + sum(child.board.stale for child in self._children)

    def counts(self) -> Counts:
        """Counts by (queue, task), of tasks that have run."""
        with self._lock:
            total: Counts = {}
            _merge(total, self._counts.items())
            for child in self._children:
                _add(total, child)
            return total


def _add(total: Counts, child: ChildProcess) -> None:
    counters = child.board.counters
    named = child.tasks[: MAX_TASKS - 1]
    _merge(
        total,
        (((task.queue, task.name), counters.read(number)) for number, task in enumerate(named)),
    )
    if len(child.tasks) > len(named):
        _merge(total, [((OTHER, OTHER), counters.read(MAX_TASKS - 1))])


def _merge(total: Counts, more: Iterable[tuple[tuple[str, str], TaskCounts]]) -> None:
    for key, counts in more:
        if counts:
            known = total.setdefault(key, TaskCounts.none())
            known += counts
