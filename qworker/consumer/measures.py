"""Counts and times of handled messages, added up per batch and written to the board; and what the journal is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.counters import OUTCOMES, TIME_LIMIT, TaskCounts
from qworker.consumer.delivery import ACKED, NOT_STARTED
from qworker.consumer.events import note_acked

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.board import Board
    from qworker.consumer.delivery import Delivery, Lease

__all__ = ["Measures"]

_ACKED: Final = 0
_NACKED: Final = 1
_BURIED: Final = 2
_TIME_LIMIT: Final = OUTCOMES.index(TIME_LIMIT)


class Measures:
    """Adds up what a batch came to, in one pass; a message costs an entry in a list and a few additions.

    `numbers`: task name → its number on the board. `log` writes a line for each handled message; None: none does.
    """

    def __init__(
        self, board: Board, numbers: dict[str, int], log: Callable[..., None] | None = None
    ) -> None:
        self._board = board
        self._numbers = numbers
        self._log = log
        self._ended: list[Delivery] = []

    def note(self, delivery: Delivery) -> None:
        """Count one delivery that has ended; what was given back unstarted counts for nothing."""
        self._ended.append(delivery)

    def learn(self, lease: Lease) -> None:
        """Take what the messages of a lease took into the pace of their queue."""
        self.write()
        if lease.took:
            lease.queue.learn(lease.took_s, lease.took)
            lease.took_s, lease.took = 0.0, 0

    def write(self) -> None:
        """Write to the board what was noted since the last time."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        batches: dict[tuple[Task[..., Any], Lease], list[Delivery]] = {}
        task = lease = None
        for delivery in ended:
            # Neighbours are mostly of one kind.
            if delivery.task is not task or delivery.lease is not lease:
                task, lease = delivery.task, delivery.lease
                append = batches.setdefault((task, lease), []).append if task else _ignore
            append(delivery)
        for (task, lease), batch in batches.items():
            self._add(task, lease, batch)

    def _add(self, task: Task[..., Any], lease: Lease, batch: list[Delivery]) -> None:
        counts = TaskCounts.none()
        outcomes = [each.outcome for each in batch if each.kind not in NOT_STARTED]
        for number in set(outcomes):
            counts.outcomes[number] = outcomes.count(number)
        # What ended before its handler has taken no time.
        ran = [each for each in batch if each.took_s]
        runs_s = [each.took_s for each in ran]
        lease.took_s += sum(runs_s)
        lease.took += len(runs_s)
        counts.add_runs(runs_s)
        counts.add_waits(
            [
                (lease.now_ms - ready_ms) / 1000
                for each in ran
                if (ready_ms := each.ready_ms) is not None
            ]
        )
        counted = counts.outcomes
        failed = counted[_NACKED] + counted[_BURIED] + counted[_TIME_LIMIT]
        # The slot of a lease of which nothing is open may be another one's by now.
        marks_at = [each.mark_at for each in batch] if lease.open > 0 else ()
        self._board.count(self._numbers[task.name], counts, marks_at, failed)
        acked = counts.outcomes[_ACKED]
        # What was acked before its start (at most once) was told then.
        if lease.journal and acked and not task.task_options.at_most_once:
            if not acked == len(runs_s) == len(batch):
                batch = [each for each in batch if each.kind == ACKED]
                runs_s = [each.took_s for each in batch]
            note_acked(lease, task, batch, runs_s)
        if self._log is not None:
            _tell(self._log, task, lease, batch)


def _tell(
    log: Callable[..., None], task: Task[..., Any], lease: Lease, batch: list[Delivery]
) -> None:
    """Write a line for each message that was handled: how it ended, how long it ran, and how long it had been ready."""
    for delivery in batch:
        envelope = delivery.envelope()
        if delivery.kind in NOT_STARTED or envelope is None:
            continue
        ready_ms = delivery.ready_ms
        waited = {} if ready_ms is None else {"waited_s": max(0, lease.now_ms - ready_ms) / 1000}
        log(
            "message_handled",
            queue=lease.queue.name,
            task=task.name,
            message_id=envelope.id,
            outcome=OUTCOMES[delivery.outcome],
            receive_count=envelope.receives + 1,
            ran_s=round(delivery.took_s, 6),
            **waited,
        )


def _ignore(_: Delivery) -> None:
    """Count nothing for a message whose task nobody knows."""
