"""Counts and times of handled messages, added up per batch and written to the board."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from qworker.consumer.board import BUCKETS_S, OUTCOMES, Board

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery

__all__ = ["Measures"]

_BUCKETS: Final = len(BUCKETS_S) + 1


class _TaskCounts:
    __slots__ = ("outcomes", "run", "run_s", "wait", "wait_s")

    def __init__(self) -> None:
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
        self._tasks: dict[str, _TaskCounts] = {}
        self._handled = 0
        self._failed = 0

    def note(self, delivery: Delivery) -> None:
        """Count one delivery that has ended."""
        task = delivery.task
        if task is None or not delivery.started or delivery.kind in ("-", "l"):
            return
        counts = self._tasks.get(task.name)
        if counts is None:
            counts = self._tasks[task.name] = _TaskCounts()
        counts.outcomes[delivery.outcome] += 1
        took_s = delivery.took_s
        counts.run[bisect_left(BUCKETS_S, took_s)] += 1
        counts.run_s += took_s
        self._handled += 1
        if delivery.outcome in (1, 2):
            self._failed += 1
        envelope = delivery.envelope()
        if envelope is not None:
            lease = delivery.lease
            wait_s = (lease.now_ms - envelope.sent_ms) / 1000
            counts.wait[bisect_left(BUCKETS_S, wait_s)] += 1
            counts.wait_s += wait_s
        delivery.lease.queue.learn(took_s, 1)

    def write(self) -> None:
        """Write to the board what was added up since the last time."""
        if not self._handled:
            return
        for name, counts in self._tasks.items():
            self._board.add(
                self._numbers[name],
                counts.outcomes,
                (counts.run, counts.run_s),
                (counts.wait, counts.wait_s),
            )
        self._tasks.clear()
        self._board.handled += self._handled
        self._board.failed += self._failed
        self._handled = self._failed = 0
