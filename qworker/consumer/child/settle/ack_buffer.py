"""Collects how deliveries ended. Outcomes ride on the next receive of their queue, or are flushed after 20 ms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import Mark
from qworker.consumer.child.leases.ending_kinds import DROPPED, LEFT
from qworker.consumer.child.settle.journal_events import take_acked
from qworker.consumer.child.settle.outcomes import InFlightOutcomes, add_outcome
from qworker.engine.receive import settle_receive
from qworker.engine.settle import Settled, settle
from qworker.errors import QworkerError, UnfinishedError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.settle.relaying import ChildRelay
    from qworker.consumer.child.settle.stats import HandlerStats
    from qworker.engine.command import Command
    from qworker.engine.receive import Batch
    from qworker.wire.ids import IdSource

__all__ = ["FLUSH_S", "AckBuffer"]

_log = guarded(__name__)

#: Outcomes wait for this long at most.
FLUSH_S: Final = 0.02
#: Outcomes that the server has refused wait for this long before the next try.
_REFUSED_PAUSE_S: Final = 5.0
#: Leases that one call settles.
_MAX_LEASES: Final = 64


class AckBuffer:
    """Collects outcomes until they are sent. `started` counts deliveries that were not given back unstarted.

    `caller`, for the journal: `<host>:<pid>` of the supervisor. `relay` gets the queues whose acks counted
    and concern other queues.
    """

    def __init__(
        self,
        leases: ChildLeases,
        connection: Connection,
        stats: HandlerStats,
        ids: IdSource,
        *,
        caller: str = "",
        relay: ChildRelay | None = None,
    ) -> None:
        self.caller = caller
        self._relay = relay
        self._leases = leases
        self._connection = connection
        self._stats = stats
        self._ids = ids
        #: By shard, and whether heavy outcomes were refused.
        self._refused_until: dict[tuple[str, bool], float] = {}
        #: When the oldest outcome came that is not sent yet; None without any.
        self.unsent_since: float | None = None
        self.started = 0

    def note(self, delivery: Delivery) -> None:
        """Take the outcome of a delivery that has ended."""
        lease = delivery.lease
        add_outcome(delivery, lease.outcomes)
        if delivery.kind != DROPPED:
            self.started += 1
        self._stats.note(delivery)
        if not lease.open:
            if delivery.acked:
                # Nothing more is sent for the lease, which is when its running times are usually learned.
                self._stats.learn(lease)
            self._leases.free_if_settled(lease)
        elif self.unsent_since is None:
            self.unsent_since = boot_time()

    def give_back(self, delivery: Delivery) -> None:
        """Take a delivery that must not start any more."""
        if not delivery.kind:
            marks, at = self._leases.board.bytes, delivery.mark_at
            delivery.kind = LEFT if marks[at] == Mark.RECALLED else DROPPED
            marks[at] = Mark.GONE
        self.note(delivery)

    def take(self, queue: QueueState) -> list[InFlightOutcomes]:
        """Take outcomes of one queue, as many as one call may carry; then call `settled` or `refused`."""
        if self.unsent_since is None:
            return []
        taken: list[InFlightOutcomes] = []
        some_left = False
        for lease in self._leases.by_slot.values():
            if not lease.unsent:
                continue
            if (
                lease.queue is queue
                and len(taken) < _MAX_LEASES
                and (lease.outcomes or lease.refused)
            ):
                self._stats.learn(lease)
                lease.outcomes.groups += take_acked(lease)
                taken.append(InFlightOutcomes(lease, *lease.take_outcomes()))
                some_left = some_left or lease.unsent
            else:
                some_left = True
        if taken and not some_left:
            self.unsent_since = None
        return taken

    def _take_heavy(self, queue: QueueState) -> list[InFlightOutcomes]:
        """Take heavy outcomes of one queue, of one lease: they are as many bytes as a call may carry."""
        for lease in self._leases.by_slot.values():
            if lease.queue is queue and lease.has_heavy:
                self._stats.learn(lease)
                taken = [InFlightOutcomes(lease, *lease.take_heavy(), heavy=True)]
                if not any(other.unsent for other in self._leases.by_slot.values()):
                    self.unsent_since = None
                return taken
        return []

    def settled(self, in_flight: Sequence[InFlightOutcomes], settled: Sequence[int]) -> None:
        """Note how many messages of each lease the server has settled."""
        for sent, messages in zip(in_flight, settled, strict=True):
            lease = sent.lease
            lease.open -= sent.messages
            if messages < sent.messages:
                self._leases.board.stale += sent.messages - messages
            if sent.outcomes.relayed and self._relay is not None:
                self._relay.tell(lease.queue.keys)
            self._leases.free_if_settled(lease)

    def refused(
        self, queue: QueueState, in_flight: Sequence[InFlightOutcomes], error: QworkerError
    ) -> None:
        """Keep outcomes that were refused: they are sent again in 5 s, and the supervisor keeps their leases.

        Of outcomes that may have been applied in part only the acks are sent again: another one, which moves a message,
        would move it every 5 s. What those left in a lease comes back when the lease runs out.
        """
        if isinstance(error, UnfinishedError):
            in_flight = [*self._acks_of(in_flight)]
        for sent in in_flight:
            refused = sent.lease.refused_heavy if sent.heavy else sent.lease.refused
            refused.append((sent.outcomes, sent.messages))
        if in_flight:
            # A full server refuses heavy outcomes alone.
            key = queue.shard, in_flight[0].heavy
            self._refused_until[key] = boot_time() + _REFUSED_PAUSE_S
            self.unsent_since = self.unsent_since or boot_time()

    def _acks_of(self, in_flight: Sequence[InFlightOutcomes]) -> Iterator[InFlightOutcomes]:
        """Yield the acks, and drop the other outcomes."""
        for sent in in_flight:
            acks, others = sent.outcomes.only_acks()
            if others:
                sent.lease.open -= others
                self._leases.free_if_settled(sent.lease)
            if acks:
                yield InFlightOutcomes(sent.lease, acks, sent.messages - others, sent.heavy)

    def due_in(self) -> float | None:
        """Seconds until outcomes have to be sent; None without any."""
        if self.unsent_since is None:
            return None
        now = boot_time()
        waits_s = [
            max(self.unsent_since + FLUSH_S, self._refused_until.get(unsent, 0.0)) - now
            for unsent in self._unsent_queues()
        ]
        return max(0.0, min(waits_s)) if waits_s else None

    def flush(self, *, last: bool = False) -> None:
        """Send everything now, one call per queue in one trip. Nothing may be in flight.

        `last`: also recently refused ones. Raises `Abandoned`.
        """
        failed: set[tuple[str, bool]] = set()
        while True:
            begun: list[tuple[QueueState, list[InFlightOutcomes]]] = []
            for queue, in_flight, command in self.calls(without=failed, last=last):
                self._connection.begin(command)
                begun.append((queue, in_flight))
            if not begun:
                return
            failed.update(
                (queue.shard, in_flight[0].heavy)
                for queue, in_flight in begun
                if not self.finish(queue, in_flight)
            )

    def calls(
        self, *, without: Collection[tuple[str, bool]] = (), last: bool = False
    ) -> Iterator[tuple[QueueState, list[InFlightOutcomes], Command[Any]]]:
        """Take the outcomes to send now, and yield a call per queue, and one for its heavy outcomes.

        Begin each at once, and then `finish` them in order. `without`: shards to leave out, each with whether that is
        for heavy outcomes. `last`: also recently refused ones.
        """
        now = boot_time()
        for unsent, queue in self._unsent_queues().items():
            if unsent in without or (not last and self._refused_until.get(unsent, 0.0) > now):
                continue
            if unsent[1]:
                in_flight = self._take_heavy(queue)
                heavy = [sent.outcomes for sent in in_flight]
                yield queue, in_flight, settle(queue.keys, heavy, caller=self.caller, heavy=True)
                continue
            in_flight = self.take(queue)
            # A receive of no message settles without a reply per message.
            outcomes = [sent.outcomes for sent in in_flight]
            lease_id = self._ids.lease_id()
            yield (
                queue,
                in_flight,
                settle_receive(queue.keys, lease_id, 0, outcomes=outcomes, caller=self.caller),
            )

    def finish(self, queue: QueueState, in_flight: Sequence[InFlightOutcomes]) -> bool:
        """Read the reply of one of `calls`; returns whether the server took the outcomes. Raises `Abandoned`."""
        try:
            reply: Batch | Settled = self._connection.finish()
        except QworkerError as error:
            _log.error("settle_refused", queue=queue.shard, error=str(error))
            self.refused(queue, in_flight, error)
            return False
        settled = reply.per_lease if isinstance(reply, Settled) else reply.settled
        self.settled(in_flight, settled)
        return True

    @property
    def is_settled(self) -> bool:
        """Whether all outcomes were sent or refused, and their messages to other queues were stored or refused."""
        due_s = self.due_in()
        is_sent = due_s is None or due_s > FLUSH_S
        return is_sent and not (self._relay is not None and self._relay.busy)

    def close(self) -> None:
        """Finish relaying messages of acks to other queues; call it after the last flush."""
        if self._relay is not None:
            self._relay.close()

    def _unsent_queues(self) -> dict[tuple[str, bool], QueueState]:
        """The queues with outcomes to send, by shard, and those with heavy ones."""
        queues: dict[tuple[str, bool], QueueState] = {}
        if self.unsent_since is None:
            return queues
        for lease in self._leases.by_slot.values():
            if lease.outcomes or lease.refused:
                queues[lease.queue.shard, False] = lease.queue
            if lease.has_heavy:
                queues[lease.queue.shard, True] = lease.queue
        return queues
