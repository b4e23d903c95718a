"""Counts and times of handled messages, added up per batch and written to the board."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board import BUCKETS_S, OUTCOMES, Board

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery, Lease
    from qworker.consumer.task import Task

__all__ = ["Measures"]

_BUCKETS: Final = len(BUCKETS_S) + 1
#: Kinds of end of what was given back or left to others.
_NOT_STARTED: Final = ("-", "l")


class _TaskCounts:
    __slots__ = ("number", "outcomes", "run", "run_s", "wait", "wait_s")

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes = [0] * len(OUTCOMES)
        self.run = [0] * _BUCKETS
        self.wait = [0] * _BUCKETS
        self.run_s = 0.0
        self.wait_s = 0.0


class Measures:
    """Adds up what a batch came to; nothing here costs a message more than a few additions."""

    def __init__(self, board: Board, numbers: dict[str, int]) -> None:
        self._board = board
        self._numbers = numbers
        self._tasks: dict[Task[..., Any], _TaskCounts] = {}

    def note(self, delivery: Delivery) -> None:
        """Count one delivery that has ended."""
        task = delivery.task
        if task is None or delivery.kind in _NOT_STARTED:
            return
        counts = self._tasks.get(task)
        if counts is None:
            counts = self._tasks[task] = _TaskCounts(self._numbers[task.name])
        counts.outcomes[delivery.outcome] += 1
        took_s = delivery.took_s
        if not took_s:
            return  # it ended before its handler
        counts.run[bisect_left(BUCKETS_S, took_s)] += 1
        counts.run_s += took_s
        lease = delivery.lease
        envelope = delivery.envelope()
        if envelope is not None:
            wait_s = (lease.now_ms - envelope.sent_ms) / 1000
            counts.wait[bisect_left(BUCKETS_S, wait_s)] += 1
            counts.wait_s += wait_s
        lease.took_s += took_s
        lease.took += 1

    def learn(self, lease: Lease) -> None:
        """Take what the messages of a lease took into the pace of their queue."""
        if lease.took:
            lease.queue.learn(lease.took_s, lease.took)
            lease.took_s, lease.took = 0.0, 0

    def write(self) -> None:
        """Write to the board what was added up since the last time."""
        if not self._tasks:
            return
        handled = failed = 0
        for counts in self._tasks.values():
            self._board.add(
                counts.number,
                counts.outcomes,
                (counts.run, counts.run_s),
                (counts.wait, counts.wait_s),
            )
            handled += sum(counts.outcomes)
            failed += counts.outcomes[1] + counts.outcomes[2]
        self._tasks.clear()
        self._board.handled += handled
        self._board.failed += failed
