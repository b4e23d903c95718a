"""Counts and times of handled messages, added up per batch and written to the board."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.counters import BUCKETS_S, TaskCounts
from qworker.consumer.delivery import NOT_STARTED

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.board import Board
    from qworker.consumer.delivery import Delivery, Lease

__all__ = ["Measures"]

_NACKED: Final = 1
_BURIED: Final = 2


class Measures:
    """Adds up what a batch came to; nothing here costs a message more than a few additions.

    `numbers`: task name → its number on the board.
    """

    def __init__(self, board: Board, numbers: dict[str, int]) -> None:
        self._board = board
        self._numbers = numbers
        self._tasks: dict[Task[..., Any], TaskCounts] = {}

    def note(self, delivery: Delivery) -> None:
        """Count one delivery that has ended; what was given back unstarted counts for nothing."""
        task = delivery.task
        if task is None or delivery.kind in NOT_STARTED:
            return
        counts = self._tasks.get(task)
        if counts is None:
            counts = self._tasks[task] = TaskCounts.none()
        counts.outcomes[delivery.outcome] += 1
        took_s = delivery.took_s
        if not took_s:
            return  # it ended before its handler
        counts.run[bisect_left(BUCKETS_S, took_s)] += 1
        counts.run_s += took_s
        lease = delivery.lease
        sent_ms = delivery.fresh_ms
        if sent_ms is None:
            envelope = delivery.envelope()
            if envelope is not None and not envelope.receives:
                sent_ms = envelope.sent_ms
        if sent_ms is not None:
            wait_s = (lease.now_ms - sent_ms) / 1000
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
        for task, counts in self._tasks.items():
            self._board.counters.add(self._numbers[task.name], counts)
            handled += sum(counts.outcomes)
            failed += counts.outcomes[_NACKED] + counts.outcomes[_BURIED]
        self._tasks.clear()
        self._board.handled += handled
        self._board.failed += failed
