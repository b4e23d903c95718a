"""Reads the replies of receives: the messages, and the state of their queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.clock import boot_time
from qworker.engine.receive import Suspects, settle_receive
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    QworkerError,
    RetryRule,
    ServerError,
    UnfinishedError,
)
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases, PendingLease
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.receive.chooser import QueueChooser
    from qworker.consumer.child.receive.lease_returns import LeaseReturns
    from qworker.consumer.child.receive.poll_schedule import PollSchedule
    from qworker.consumer.child.settle.ack_buffer import AckBuffer
    from qworker.consumer.child.settle.outcomes import InFlightOutcomes
    from qworker.engine.command import Command
    from qworker.engine.receive import Batch
    from qworker.wire.ids import IdSource

__all__ = ["Receiver"]

_log = guarded(__name__)

_BROKEN_PAUSE_S: Final = 5.0
#: The pause if a node of a Cluster is away: asking again costs nothing (see `Connection`), and a replica may serve.
_AWAY_PAUSE_S: Final = 1.0
#: Handlers of so few messages take long, so that they end one by one.
_FEW: Final = 32


class Receiver:
    """Makes the leases and commands of receives, and takes their replies into `arrived`.

    A receive may go over any connection: that of settles, or one that waits at a doorbell.
    """

    def __init__(
        self,
        chooser: QueueChooser,
        polls: PollSchedule,
        leases: ChildLeases,
        ack_buffer: AckBuffer,
        returns: LeaseReturns,
        *,
        ids: IdSource,
        visibility_ms: int | None,
        slots: int,
    ) -> None:
        self.arrived: deque[Delivery] = deque()
        #: By shard, when a group of it that waits for a time may run: no bell rings for that.
        self.due: dict[str, tuple[QueueState, float]] = {}
        self._chooser = chooser
        self._polls = polls
        self._leases = leases
        self._ack_buffer = ack_buffer
        self.returns = returns
        self._ids = ids
        self._visibility_ms = visibility_ms
        self._slots = slots

    def take_arrived(self) -> deque[Delivery]:
        """Take the messages that have arrived."""
        arrived, self.arrived = self.arrived, deque()
        return arrived

    def enter(self, queue: QueueState) -> PendingLease:
        """Enter the lease of a receive on the board, before the receive is sent."""
        return self._leases.enter(queue, self._ids.lease_id(self._visibility_ms))

    def command(
        self,
        pending: PendingLease,
        count: int,
        suspects: Suspects,
        in_flight: Sequence[InFlightOutcomes] = (),
    ) -> Command[Batch]:
        """Make the command that receives up to `count` messages, and settles outcomes along with it."""
        return settle_receive(
            pending.queue.keys,
            pending.lease_id,
            count,
            outcomes=[sent.outcomes for sent in in_flight],
            visibility_ms=self._visibility_ms,
            suspects=suspects,
            caller=self._ack_buffer.caller,
            each=self._slots > 1 and count <= _FEW,
        )

    def take(
        self,
        connection: Connection,
        pending: PendingLease,
        in_flight: Sequence[InFlightOutcomes] = (),
        *,
        waited: bool = False,
    ) -> Batch | None:
        """Read the reply of a receive; None if it was refused, and its queue is left alone. Raises `Abandoned`.

        `waited`: it followed a wait in the same trip.
        """
        queue = pending.queue
        try:
            batch: Batch = connection.finish()
        except QworkerError as error:
            self.note_error(queue, error)
            self._leases.drop(pending)
            self._ack_buffer.refused(queue, in_flight, error)
            if isinstance(error, InDoubtError | UnfinishedError):
                self.returns.in_doubt(queue, pending.lease_id)
            return None
        queue.note_trip(boot_time() - pending.begun, waited=waited)
        self._ack_buffer.settled(in_flight, batch.settled)
        self._chooser.answered(queue)
        self.returns.answered(queue)
        queue.ready_left, queue.hint_ms = batch.ready_left, batch.hint_ms
        queue.has_groups = batch.has_groups
        if batch.wait_ms:
            self.due[queue.shard] = queue, monotonic() + batch.wait_ms / 1000
        else:
            self.due.pop(queue.shard, None)
        self._chooser.note_suspects(queue, batch.suspects)
        if batch.items:
            self._hold(pending, batch)
        else:
            self._drop_empty(pending, batch)
        return batch

    def note_error(self, queue: QueueState, error: QworkerError) -> None:
        """Leave a queue alone whose call has raised an error."""
        away = isinstance(error, ServerError) and error.retry is not RetryRule.NEVER
        pause_s = _AWAY_PAUSE_S if away else _BROKEN_PAUSE_S
        self.leave_alone(queue, str(error), type(error).__name__, pause_s)

    def leave_alone(
        self, queue: QueueState, problem: str, kind: str, pause_s: float = _BROKEN_PAUSE_S
    ) -> None:
        """Ask a queue for nothing for a while, because it cannot be received from; other queues are not affected."""
        if self._chooser.leave_alone(queue, monotonic() + pause_s):
            event = "queue_broken" if kind == BrokenQueueError.__name__ else "receive_failed"
            _log.error(event, queue=queue.shard, error=problem, kind=kind)
        if not self._chooser.single:
            # The poll after the pause says whether it has messages.
            self._chooser.note_empty(queue)
            self._chooser.note_suspects(queue, 0)

    def _drop_empty(self, pending: PendingLease, batch: Batch) -> None:
        self._leases.drop(pending)
        if batch.resumed:
            # The first sending of the call may still be on its way.
            self.returns.in_doubt(pending.queue, pending.lease_id)
        # A hint of 0 without messages: expired ones were removed and there are more. Or suspects wait, which only an
        # idle child may take.
        if batch.hint_ms != 0 or batch.suspects:
            self._chooser.note_empty(pending.queue)
        else:
            pending.queue.ready_left = None
            self._chooser.note_ready(pending.queue)

    def _hold(self, pending: PendingLease, batch: Batch) -> None:
        self._polls.note_activity()
        if batch.ready_left or self._chooser.single:
            # Plain pushes ring no bell: a single queue is asked until it returns nothing.
            self._chooser.note_ready(pending.queue)
        else:
            self._chooser.note_empty(pending.queue)
        deliveries = self._leases.hold(pending, batch)
        if self._leases.board.leases.recalled(pending.slot):
            # The supervisor recalled the lease while its reply was on the way, perhaps before it was created.
            self.returns.recalled(pending.queue, pending.lease_id)
            lease = deliveries[0].lease
            lease.open = 0
            self._leases.free_if_settled(lease)
        else:
            self.arrived += deliveries
