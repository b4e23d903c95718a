"""Acks messages of tasks that run at most once, before they start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board.states import Mark
from qworker.consumer.child.leases.ending_kinds import ACKED, LEFT
from qworker.consumer.child.settle.journal_events import acked_unstarted
from qworker.consumer.child.settle.outcomes import add_outcome
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.receive.fetch import Fetcher
    from qworker.consumer.child.settle.ack_buffer import AckBuffer
    from qworker.consumer.child.settle.stats import HandlerStats
    from qworker.engine.command import Command

__all__ = ["AckFirst", "is_at_most_once"]

_log = guarded(__name__)

#: Messages that one line of the log names.
_NAMED: Final = 20


def is_at_most_once(call: Any) -> bool:
    """Whether a call is of a task whose messages run at most once."""
    task = (call[0] if isinstance(call, list) else call).task
    return bool(task.task_options.at_most_once)


class AckFirst:
    """Acks calls before they start: deliveries, or lists of them for calls of batch handlers."""

    def __init__(
        self,
        runner: Runner,
        fetcher: Fetcher,
        ack_buffer: AckBuffer,
        connection: Connection,
        stats: HandlerStats,
    ) -> None:
        self._runner = runner
        self._marks = runner.board.bytes
        self._acked = runner.board.acked
        self._numbers = runner.numbers
        self._fetcher = fetcher
        self._ack_buffer = ack_buffer
        self._connection = connection
        self._stats = stats

    def ack(self, calls: Sequence[Any]) -> set[int]:
        """Ack calls that start now, in one trip; returns the `id` of each that must not start.

        A call starts only after a definite reply that counts its ack. Lists lose the messages whose acks do not count.
        """
        by_lease: dict[int, list[Delivery]] = {}
        lost: set[int] = set()
        for call in calls:
            deliveries = call if isinstance(call, list) else [call]
            # The lease may have run out since the message was read, or been recalled by the supervisor.
            if all(self._may_start(delivery) for delivery in deliveries):
                for delivery in deliveries:
                    by_lease.setdefault(delivery.lease.slot, []).append(delivery)
            else:
                lost.add(id(call))
                for delivery in deliveries:
                    self._ack_buffer.give_back(delivery)
        # In the same trip as calls already in flight.
        self._fetcher.call(
            [
                (self._command(deliveries), partial(self._finish, deliveries))
                for deliveries in by_lease.values()
            ]
        )
        for call in calls:
            deliveries = call if isinstance(call, list) else [call]
            if id(call) in lost:
                continue
            acked = [delivery for delivery in deliveries if delivery.acked and not delivery.kind]
            if len(acked) == len(deliveries):
                continue
            for delivery in deliveries:
                if delivery.kind:
                    self._ack_buffer.note(delivery)
            if acked:
                call[:] = acked
                acked[0].member = False
            else:
                lost.add(id(call))
        return lost

    def _may_start(self, delivery: Delivery) -> bool:
        if not self._runner.mark_running(delivery, self._runner.clock()):
            return False
        self._marks[delivery.mark_at] = Mark.UNSTARTED
        return True

    def _command(self, deliveries: list[Delivery]) -> Command[Settled]:
        lease = deliveries[0].lease
        self._stats.learn(lease)
        outcomes = Outcomes(lease.id)
        # The script replies for messages with unique keys before the others.
        deliveries.sort(key=lambda delivery: delivery.unique_key() is None)
        for delivery in deliveries:
            delivery.kind = ACKED
            add_outcome(delivery, outcomes)
        if lease.journal:
            outcomes.groups = acked_unstarted(deliveries)
        lease.partly = True
        # First: should the child die before it has read the reply, its supervisor knows which messages that concerns.
        messages = [(each.position, self._numbers[each.task], each.item) for each in deliveries]
        self._acked.note(lease.slot, lease.id, messages)
        return settle(lease.queue.keys, [outcomes], caller=self._ack_buffer.caller)

    def _finish(self, deliveries: Sequence[Delivery]) -> None:
        lease = deliveries[0].lease
        try:
            settled: Settled = self._connection.finish()
        except QworkerError as error:
            _log.error(
                "ack_refused",
                queue=lease.queue.name,
                error=str(error),
                message_ids=_ids(deliveries),
            )
            for delivery in deliveries:
                delivery.kind = LEFT
            return
        left = []
        for delivery, counted in zip(deliveries, settled.counted, strict=True):
            delivery.acked = True
            # It has left its lease: it cannot be recalled, and until it starts it has not run.
            self._marks[delivery.mark_at] = Mark.GONE
            if counted:
                delivery.kind = ""
            else:
                delivery.kind = LEFT
                left.append(delivery)
                self._acked.forget(lease.slot, delivery.position)
        self._runner.board.stale += len(left)
        if left and self._connection.repeated:
            _log.warning(
                "acks_in_doubt",
                queue=lease.queue.name,
                messages=len(left),
                message_ids=_ids(left),
                error="the reply of their acks before their start was lost: they are not started, and come back only "
                "if the acks had not counted",
            )


def _ids(deliveries: Sequence[Delivery]) -> list[str]:
    envelopes = [delivery.envelope() for delivery in deliveries[:_NAMED]]
    return [envelope.id for envelope in envelopes if envelope is not None]
