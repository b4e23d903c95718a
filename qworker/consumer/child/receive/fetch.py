"""Supplies a child with messages: receives the next batch while this one runs, and waits while queues are empty.

Settles, receives and polls share one connection (see `pipeline`), waits have others (see `doorbells`). Receives from
several short queues, and a poll of all the others, go in one trip: neither the number of queues nor the round trip
keeps a child from its last queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.consumer.child.receive.chooser import QueueChooser
from qworker.consumer.child.receive.lease_returns import LeaseReturns
from qworker.consumer.child.receive.pipeline import Pipeline
from qworker.consumer.child.receive.planner import PlannedReceive, ReceivePlanner
from qworker.consumer.child.receive.poll_schedule import PollSchedule
from qworker.consumer.child.receive.polls import Poller
from qworker.consumer.child.receive.receiver import Receiver
from qworker.consumer.child.receive.suspect_turns import SuspectTurns
from qworker.consumer.child.receive.waits import LEAST_S, DoorbellWaits

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases, PendingLease
    from qworker.consumer.child.receive.doorbells import Doorbell, Doorbells
    from qworker.consumer.child.settle.ack_buffer import AckBuffer
    from qworker.consumer.child.settle.outcomes import InFlightOutcomes
    from qworker.engine.command import Command
    from qworker.wire.ids import IdSource

__all__ = ["FetchOptions", "Fetcher"]

#: A group that waits for its rate is not asked for sooner.
_SOONEST_S: Final = 0.001


class FetchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` handlers may run at a time. `takes_suspects`: this child may take suspects before other messages.

    `weighted`: queues are tried in random order by weight, else strictly in order. `visibility_ms` None: the queue's.
    """

    slots: int
    takes_suspects: bool = True
    weighted: bool = False
    visibility_ms: int | None = None
    clustered: bool = False


class Fetcher:
    """Decides when to receive, poll and wait. Messages arrive in `receiver.arrived`."""

    def __init__(
        self,
        queues: Sequence[QueueState],
        leases: ChildLeases,
        ack_buffer: AckBuffer,
        connection: Connection,
        doorbells: Doorbells,
        ids: IdSource,
        options: FetchOptions,
    ) -> None:
        clustered, slots = options.clustered, options.slots
        self._leases = leases
        self._ack_buffer = ack_buffer
        self._chooser = chooser = QueueChooser(queues, weighted=options.weighted)
        self._polls = polls = PollSchedule(len(queues), glances=doorbells.many)
        self._suspects = suspects = SuspectTurns(first=options.takes_suspects)
        self._pipeline = pipeline = Pipeline(connection, clustered=clustered)
        self.receiver = receiver = Receiver(
            chooser,
            polls,
            leases,
            ack_buffer,
            LeaseReturns(pipeline, leases.board.doubts, caller=ack_buffer.caller),
            ids=ids,
            visibility_ms=options.visibility_ms,
            slots=slots,
        )
        self.planner = ReceivePlanner(chooser, suspects, leases, slots=slots)
        self.doorbells = doorbells
        self._waits = DoorbellWaits(
            doorbells, chooser, polls, suspects, receiver, leases, slots=slots
        )
        self._poller = Poller(
            polls, chooser, receiver, pipeline, doorbells, leases, clustered=clustered
        )
        self._receives = 0
        self._has_cut_waits = False
        self.recheck()

    @property
    def fetching(self) -> bool:
        """Whether a receive, a poll or a settle is in flight."""
        return bool(self._pipeline)

    @property
    def overdue_in(self) -> float:
        """Seconds until `take` stops waiting for the replies in flight, and continues without them."""
        return self._pipeline.overdue_in

    @property
    def has_lone(self) -> bool:
        """Whether one message has arrived, and was the last of the only queue."""
        single, arrived = self._chooser.single, self.receiver.arrived
        return single and len(arrived) == 1 and self._chooser.queues[0].ready_left == 0

    @property
    def may_wait(self) -> bool:
        """Whether it waits at some doorbells but not at all, and nothing is in flight."""
        bells = self.doorbells
        return any(bell.wait for bell in bells) and not (bells.waiting or self.fetching)

    def more(self, busy: int, collected: int = 0, most: int | None = None) -> bool:
        """Receive more if there is room. Returns False if no queue is known to have messages.

        `busy`: handlers that run or have work waiting. `collected`: messages that wait for their batch to fill up.
        `most`: messages that may still be taken, None for any number.
        """
        due = self._note_due() if self.receiver.due else frozenset[str]()
        if self._receives or self._leases.alone or self._leases.full:
            return True
        idle = not busy and not collected
        waiting = self.doorbells.waiting
        if waiting:
            # A child that has become idle during its wait may take a known suspect at once.
            if idle and not self.doorbells.receiving:
                suspect = self.planner.suspect(monotonic(), most)
                if suspect is not None:
                    self._begin(suspect)
            if self._receives or not (self.doorbells.patient or due):
                return True
        candidates = self._chooser.candidates(
            monotonic(), idle=idle and not waiting, without=self.doorbells.waited_for() - due
        )
        planned = self.planner.plan(candidates, busy=busy, collected=collected, most=most)
        for receive in planned:
            self._begin(receive)
        if self._receives or not candidates or len(self.planner.calls) > 1:
            self._poller.begin_if_due(any_ready=bool(candidates))
        return bool(candidates) or waiting or self.fetching

    def recheck(self) -> None:
        """Forget which queues were empty."""
        if self._chooser.single:
            self._chooser.note_ready(self._chooser.queues[0])
        else:
            self._polls.request()

    def _note_due(self) -> frozenset[str]:
        """Note the queues whose groups have waited for their time, and return their shards."""
        now, shards = monotonic(), set()
        for shard, (queue, due_at) in [*self.receiver.due.items()]:
            if due_at <= now:
                del self.receiver.due[shard]
                self._chooser.note_ready(queue)
                shards.add(shard)
        return frozenset(shards)

    def _due_in(self) -> float:
        """Seconds until a group of some queue may run again."""
        due = self.receiver.due
        return max(0.0, min(at for _, at in due.values()) - monotonic()) if due else math.inf

    def poll_in(self) -> float | None:
        """Seconds until the next call of `more`, for a poll; None while replies or bells wake the child."""
        if self.fetching:
            return None
        if self.doorbells.waiting and not self.doorbells.patient:
            # A server ends a wait up to 100 ms late, which a group that waits for its rate would lose.
            return max(_SOONEST_S, self._due_in()) if self.receiver.due else None
        poll_s = self._poller.due_in(any_ready=self._chooser.any_ready)
        return (
            max(LEAST_S, poll_s)
            if not self.receiver.due
            else max(_SOONEST_S, min(poll_s, self._due_in()))
        )

    def begin_wait(self, *, idle: bool, most: int | None = None) -> None:
        """Wait at the doorbells, until a poll is due at most; `most`: as for `more`."""
        within_s = self._poller.due_in(any_ready=False)
        self._waits.begin(idle=idle, most=most, within_s=within_s)

    def descriptors(self) -> list[int]:
        """Descriptors to poll for replies; -1 for a connection that `take` opens again."""
        settling = [self._pipeline.connection.fileno()] if self.fetching else []
        return settling + self.doorbells.descriptors()

    def take(
        self, ready: set[int], *, busy: int = 0, collected: int = 0, most: int | None = None
    ) -> None:
        """Read the replies that are there. `busy`, `collected`, `most`: as for `more`. Raises `Abandoned`."""
        self._pipeline.take(ready)
        self.receiver.returns.begin()
        self._poller.retry()
        for bell, queue in self._waits.take(ready):
            count = self.planner.room(queue, busy, collected)
            # The wait may have begun before the handlers that keep it busy, or before it was asked to stop.
            occupied = (count <= 0 and self.doorbells.patient) or (most is not None and most <= 0)
            if most is not None:
                count = min(count, most)
            if self._leases.full or self._leases.alone or self._receives or occupied:
                self._waits.ring(bell, queue)
                continue
            idle = not busy and not collected
            self._begin(PlannedReceive(queue, max(1, count), idle), bell)
            self._poller.begin_if_due(any_ready=False)

    def settle(self) -> None:
        """Send the outcomes that no receive has taken along, without waiting for the replies: `take` reads them."""
        for queue, in_flight, command in self._ack_buffer.calls():
            self._pipeline.begin(command, partial(self._ack_buffer.finish, queue, in_flight))

    def settle_between(self) -> None:
        """Do the same between two handlers: read what has arrived first, and wait only for overdue replies.

        A connection that breaks meanwhile is opened again then. Raises `Abandoned`.
        """
        self._pipeline.take_arrived()
        self.settle()

    def call(self, calls: Sequence[tuple[Command[Any], Callable[[], object]]]) -> None:
        """Make calls, each with the function that reads its reply, and wait for their replies. Raises `Abandoned`."""
        for command, finish in calls:
            self._pipeline.begin(command, finish)
        self._pipeline.take_begun()

    def _begin(self, receive: PlannedReceive, bell: Doorbell | None = None) -> None:
        """Begin a receive; `bell`: the one that rang for it."""
        queue = receive.queue
        in_flight = self._ack_buffer.take(queue)
        pending = self.receiver.enter(queue)
        suspects = self._suspects.of(queue, idle=receive.idle)
        self._receives += 1
        queue.receives += 1
        self._chooser.pass_turn(queue)
        command = self.receiver.command(pending, receive.count, suspects, in_flight)
        finish = partial(self._finish, pending, in_flight, None if suspects else bell)
        self._pipeline.begin(command, finish)

    def _finish(
        self, pending: PendingLease, in_flight: Sequence[InFlightOutcomes], bell: Doorbell | None
    ) -> None:
        """Read the reply of a receive; `bell` rang for it, and it may not take a suspect."""
        self._receives -= 1
        batch = self.receiver.take(self._pipeline.connection, pending, in_flight)
        if batch is not None and bell is not None and not batch.items and batch.suspects:
            self._waits.pass_on(bell, pending.queue)

    def end(self) -> None:
        """Cut the waits off and read the replies of all calls in flight. Raises `Abandoned`."""
        self._has_cut_waits = self.doorbells.close()
        self._pipeline.take_all()
        self.receiver.returns.begin_all()
        self._pipeline.take_all()

    def ring(self) -> None:
        """Ring for other children after `end`: a token on its way to a wait that was cut off is lost.

        Does not wait for a server that is away.
        """
        if self._has_cut_waits and not self._chooser.single:
            self._poller.ring()

    def detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self._pipeline.connection.detach()
        self.doorbells.detach()

    def close(self) -> None:
        """Close the connections."""
        self._pipeline.connection.forget()
        self.doorbells.close()
