"""Adds up counts and times of handled messages per batch, and writes them to the board and for the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board.counters import OUTCOMES, TIME_LIMIT, TaskCounts
from qworker.consumer.child.leases.ending_kinds import ACKED, NOT_STARTED
from qworker.consumer.child.settle.journal_events import note_acked

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.leases.lease import Lease

__all__ = ["HandlerStats"]

_ACKED: Final = 0
_NACKED: Final = 1
_BURIED: Final = 2
_TIME_LIMIT: Final = OUTCOMES.index(TIME_LIMIT)


class HandlerStats:
    """Adds up outcomes of a batch in one pass; a message costs an item of a list and a few additions.

    `numbers`: task name → its number on the board. `log` writes a line for each handled message, if it is not None.
    """

    def __init__(
        self, board: Board, numbers: dict[str, int], log: Callable[..., None] | None = None
    ) -> None:
        self._board = board
        self._numbers = numbers
        self._log = log
        self._ended: list[Delivery] = []

    def note(self, delivery: Delivery) -> None:
        """Count one delivery that has ended; those given back unstarted count for nothing."""
        self._ended.append(delivery)

    def learn(self, lease: Lease) -> None:
        """Let the queue of a lease learn how long its messages took."""
        self.write()
        if lease.took:
            lease.queue.learn(lease.took_s, lease.took)
            lease.took_s, lease.took = 0.0, 0

    def write(self) -> None:
        """Write to the board the deliveries noted since the last call."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        batches: dict[tuple[Task[..., Any], Lease], list[Delivery]] = {}
        task = lease = None
        for delivery in ended:
            # Neighbours mostly have the same task and lease.
            if delivery.task is not task or delivery.lease is not lease:
                task, lease = delivery.task, delivery.lease
                append = batches.setdefault((task, lease), []).append if task else _ignore
            append(delivery)
        for (task, lease), batch in batches.items():
            self._add(task, lease, batch)

    def _add(self, task: Task[..., Any], lease: Lease, batch: list[Delivery]) -> None:
        counts = TaskCounts.none()
        outcomes = [delivery.outcome for delivery in batch if delivery.kind not in NOT_STARTED]
        for number in set(outcomes):
            counts.outcomes[number] = outcomes.count(number)
        # A delivery that ended before its handler began has taken no time.
        ran = [delivery for delivery in batch if delivery.took_s]
        runs_s = [delivery.took_s for delivery in ran]
        lease.took_s += sum(runs_s)
        lease.took += len(runs_s)
        counts.add_runs(runs_s)
        counts.add_waits(
            [
                (lease.now_ms - ready_ms) / 1000
                for delivery in ran
                if (ready_ms := delivery.ready_ms) is not None
            ]
        )
        counted = counts.outcomes
        failed = counted[_NACKED] + counted[_BURIED] + counted[_TIME_LIMIT]
        # The slot of a lease without open messages may belong to another one by now.
        marks_at = [delivery.mark_at for delivery in batch] if lease.open > 0 else ()
        self._board.tally.add(self._numbers[task.name], counts, marks_at, failed)
        acked = counts.outcomes[_ACKED]
        # Messages acked before their start (at most once) were journalled then.
        if lease.journal and acked and not task.task_options.at_most_once:
            journalled = batch
            if task.result_type is not None or not acked == len(runs_s) == len(batch):
                # An ack with effects has its event with it.
                journalled = [delivery for delivery in batch if delivery.kind == ACKED]
                runs_s = [delivery.took_s for delivery in journalled]
            if journalled:
                note_acked(lease, task, journalled, runs_s)
        if self._log is not None:
            _log_handled(self._log, task, lease, batch)


def _log_handled(
    log: Callable[..., None], task: Task[..., Any], lease: Lease, batch: list[Delivery]
) -> None:
    """Log each handled message: how it ended, how long it ran, and how long it had been ready."""
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
    """Count nothing for a message without a known task."""
