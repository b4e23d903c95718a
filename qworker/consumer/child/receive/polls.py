"""Polls: a child asks all of its queues whether they have messages.

A doorbell rings for messages that our own scripts make ready. Polls find the rest: items that others push, and messages
of other queues while one queue keeps the child busy. One call covers up to 500 queues, so that the time until a message
is seen does not grow with queues times round trip. In a Cluster there is a call for each slot, all in one trip per
node.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis.crc import key_slot

from qworker.consumer.child.receive.glances import Glances
from qworker.engine.poll import MAX_POLLED, poll
from qworker.engine.raw import raw
from qworker.errors import BrokenQueueError, QworkerError

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.receive.chooser import QueueChooser
    from qworker.consumer.child.receive.doorbells import Doorbells
    from qworker.consumer.child.receive.glances import CountedQueues
    from qworker.consumer.child.receive.pipeline import Pipeline
    from qworker.consumer.child.receive.poll_schedule import PollSchedule
    from qworker.consumer.child.receive.receiver import Receiver
    from qworker.engine.command import Command
    from qworker.engine.poll import Available, Polled

__all__ = ["Poller"]

#: How long a trip of a child that ends may take, only to ring for others.
_RING_S: Final = 0.5


class Poller:
    """Polls the queues of a child over its settling connection; many queues only where a glance has found something."""

    def __init__(
        self,
        schedule: PollSchedule,
        chooser: QueueChooser,
        receiver: Receiver,
        pipeline: Pipeline,
        doorbells: Doorbells,
        leases: ChildLeases,
        *,
        clustered: bool,
    ) -> None:
        self._glances = Glances(chooser.queues) if doorbells.many else None
        self._schedule = schedule
        self._chooser = chooser
        self._receiver = receiver
        self._pipeline = pipeline
        self._doorbells = doorbells
        self._leases = leases
        self._clustered = clustered
        self._in_flight = 0
        #: Halves of polls that failed.
        self._retries: deque[Sequence[QueueState]] = deque()

    def due_in(self, *, any_ready: bool) -> float:
        """Seconds until a poll is due, see `PollSchedule.due_in`."""
        now = monotonic()
        return self._schedule.due_in(
            now,
            any_ready=any_ready,
            can_wait=self._doorbells.can_wait(now),
            peers=self._leases.board.peers,
        )

    def begin_if_due(self, *, any_ready: bool) -> None:
        """Poll all usable queues if it is time to, and no poll is in flight or being repeated in halves."""
        if self._in_flight or self._retries or self.due_in(any_ready=any_ready) > 0:
            return
        now, glances = monotonic(), None if self._schedule.requested else self._glances
        self._schedule.begin(now)
        if glances is None:
            self._poll(self._chooser.usable(now))
            return
        for group in glances.groups:
            self._in_flight += 1
            self._pipeline.begin(group.command(), partial(self._finish_glance, group))
        self._poll(self._chooser.usable(now, glances.next_slice()))

    def retry(self) -> None:
        """Poll the first half of a poll that failed, unless other calls are in flight."""
        if self._retries and not self._pipeline:
            self._begin(self._retries.popleft())

    def ring(self) -> None:
        """Ring at the queues that have messages, in two trips of half a second each at most. Nothing is in flight.

        In a Cluster, where many queues are many trips, others look for themselves within two seconds.
        """
        if self._clustered:
            return
        usable = self._chooser.usable(monotonic())
        parts = [*_calls(usable, clustered=False)]
        replies = self._answers([poll([queue.keys for queue in queues]) for queues in parts])
        self._answers(
            [
                raw("RPUSH", queues[number].keys.wake, 1)
                for queues, polled in zip(parts, replies, strict=False)
                for number, found in polled.available.items()
                if not found.problem
            ]
        )

    def _answers(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Make calls in one trip; returns the replies before the first that fails or is late."""
        connection, replies = self._pipeline.connection, list[Any]()
        for command in commands:
            connection.begin(command)
        until = monotonic() + _RING_S
        for _ in commands:
            descriptor = connection.fileno()
            if descriptor < 0:
                break
            left_s = max(0.0, until - monotonic())
            if not (connection.has_reply() or _readable(descriptor, left_s)):
                break
            try:
                replies.append(connection.finish())
            except QworkerError:
                break
        else:
            return replies
        connection.forget()
        return replies

    def _poll(self, queues: Sequence[QueueState]) -> None:
        for some in _calls(queues, clustered=self._clustered):
            self._begin(some)

    def _begin(self, queues: Sequence[QueueState]) -> None:
        self._in_flight += 1
        command = poll([queue.keys for queue in queues], levels=self._glances is not None)
        self._pipeline.begin(command, partial(self._finish, queues))

    def _finish_glance(self, group: CountedQueues) -> None:
        self._in_flight -= 1
        try:
            found: int = self._pipeline.connection.finish()
        except QworkerError:
            found = 1  # the poll shows which queue is the cause
        if found:
            self._poll(self._chooser.usable(monotonic(), group.queues))

    def _finish(self, queues: Sequence[QueueState]) -> None:
        self._in_flight -= 1
        try:
            polled: Polled = self._pipeline.connection.finish()
        except QworkerError as error:
            if len(queues) > 1:
                # One queue may be the cause (a missing right, say): halving isolates it.
                half = len(queues) // 2
                self._retries += (queues[:half], queues[half:])
            else:
                self._receiver.note_error(queues[0], error)
            return
        returns = self._receiver.returns
        for number, queue in enumerate(queues):
            if returns:
                returns.answered(queue)
            queue.levels = polled.levels.get(number, ())
            self._note(queue, polled.available.get(number))
        self._schedule.end(successful=bool(polled.available))

    def _note(self, queue: QueueState, available: Available | None) -> None:
        if available is None:
            self._chooser.note_empty(queue)
            self._chooser.note_suspects(queue, 0)
            queue.ready_left = 0
        elif available.problem:
            self._receiver.leave_alone(queue, available.problem, BrokenQueueError.__name__)
        else:
            queue.ready_left = available.ready
            # A pause that it has reported is over.
            queue.hint_ms = 0
            self._chooser.note_suspects(queue, available.suspects)
            if available.ready:
                self._chooser.note_ready(queue)
            else:
                self._chooser.note_empty(queue)


def _readable(descriptor: int, within_s: float) -> bool:
    waits = select.poll()
    waits.register(descriptor, select.POLLIN)
    return bool(waits.poll(within_s * 1000))


def _calls(queues: Sequence[QueueState], *, clustered: bool) -> Iterator[Sequence[QueueState]]:
    """Divide queues into those of one call each: up to 500, in a Cluster of one slot."""
    slots: dict[int, list[QueueState]] = {}
    for queue in queues:
        slot = int(key_slot(queue.keys.wake.encode())) if clustered else 0
        slots.setdefault(slot, []).append(queue)
    for of_slot in slots.values():
        for first in range(0, len(of_slot), MAX_POLLED):
            yield of_slot[first : first + MAX_POLLED]
