"""Plans the receives of one trip: from which queues, and how many messages from each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.receive.chooser import QueueChooser
    from qworker.consumer.child.receive.suspect_turns import SuspectTurns

__all__ = ["PlannedReceive", "ReceivePlanner"]

#: Receives of one trip at most, each from another queue.
_MAX_RECEIVES: Final = 16


class PlannedReceive(msgspec.Struct, frozen=True):
    """A receive to make. `idle`: nothing runs or waits in the child, so that it may take a suspect."""

    queue: QueueState
    count: int
    idle: bool


class ReceivePlanner:
    """Plans what to receive. `slots` handlers may run at a time.

    `calls` counts running calls by executor; the broker keeps it up to date.
    """

    def __init__(
        self, chooser: QueueChooser, suspects: SuspectTurns, leases: ChildLeases, *, slots: int
    ) -> None:
        self.calls: Sequence[int] = ()
        self._chooser = chooser
        self._suspects = suspects
        self._leases = leases
        self._slots = slots

    def plan(
        self, candidates: Sequence[QueueState], *, busy: int, collected: int, most: int | None
    ) -> Iterator[PlannedReceive]:
        """Yield receives from candidates, best first, while there is room; make each before you ask for the next.

        `busy`, `collected`, `most`: see `Fetcher.more`.
        """
        idle = not busy and not collected
        full: set[int] = set()
        requested: dict[int, int] = {}
        taken = receives = 0
        for queue in candidates:
            if not full.isdisjoint(queue.executors):
                continue
            count = self.room(queue, busy + taken, collected, requested)
            if most is not None:
                count = min(count, most - taken)
            if count <= 0:
                if not queue.executors:
                    return
                # Later queues of the same executors do not overtake it; others may.
                full.update(queue.executors)
                continue
            if self._suspects.stands_still(queue, idle=idle):
                return
            left = queue.ready_left
            if left is None or (idle and queue.suspects) or self._chooser.single:
                # How much it returns is unknown, or that may be a suspect, beside which nothing runs.
                if not receives:
                    yield PlannedReceive(queue, count, idle)
                return
            yield PlannedReceive(queue, count, idle=False)
            receives += 1
            if count < left or receives >= _MAX_RECEIVES or self._leases.full:
                return
            taken += left
            for executor in queue.executors:
                requested[executor] = requested.get(executor, 0) + left

    def suspect(self, now: float, most: int | None) -> PlannedReceive | None:
        """Plan the receive of a known suspect by an idle child; None if there is no suspect."""
        for queue in self._chooser.candidates(now, idle=True):
            if queue.suspects:
                count = max(1, self.room(queue, 0))
                return PlannedReceive(queue, count if most is None else min(count, most), idle=True)
        return None

    def room(
        self,
        queue: QueueState,
        busy: int,
        collected: int = 0,
        requested: dict[int, int] | None = None,
    ) -> int:
        """How many messages to ask a queue for now. `requested`: messages in flight already, by executor."""
        requested = requested or {}
        queue.busy = sum(
            self.calls[number] + requested.get(number, 0) for number in queue.executors
        )
        return queue.want(busy, self._slots, self._leases.board.peers, collected)
