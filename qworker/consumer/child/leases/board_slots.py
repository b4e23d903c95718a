"""The leases of a child: on its board for the supervisor, and in memory for the child itself."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from qworker.consumer.child.leases.delivery import Delivery
from qworker.consumer.child.leases.lease import Lease

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.engine.receive import Batch

__all__ = ["ChildLeases", "PendingLease"]


class PendingLease(msgspec.Struct, frozen=True):
    """A lease that was entered on the board before the call that may create it; its visibility counts from `begun`."""

    queue: QueueState
    slot: int
    lease_id: str
    begun: float


class ChildLeases:
    """The leases that a child holds, by their slots on the board.

    `alone`: one of them is that of a suspect, which runs alone.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.by_slot: dict[int, Lease] = {}
        self.alone = False
        self._free = deque(range(board.leases.number))

    @property
    def full(self) -> bool:
        """Whether there is no room for another lease."""
        return not self._free

    def enter(self, queue: QueueState, lease_id: str) -> PendingLease:
        """Put a new lease on the board, before the call that may create it."""
        slot = self._free.popleft()
        begun = self.board.leases.enter(slot, lease_id, queue.index, queue.visibility_s)
        return PendingLease(queue, slot, lease_id, begun)

    def drop(self, pending: PendingLease) -> None:
        """Forget a lease that was not created."""
        self._release_slot(pending.slot)

    def hold(self, pending: PendingLease, batch: Batch) -> list[Delivery]:
        """Hold the lease of a batch; returns its messages in order."""
        queue, slot = pending.queue, pending.slot
        visibility_s = (batch.deadline_ms - batch.now_ms) / 1000
        # A resumed lease has less time left than it was given, so this takes the largest visibility seen so far.
        queue.visibility_s = max(queue.visibility_s, visibility_s)
        lease = Lease(self.board, slot, queue, batch, visibility_s)
        self.by_slot[slot] = lease
        self.alone = batch.alone
        self.board.leases.hold(
            slot, len(batch.items), pending.begun + visibility_s, queue.visibility_s
        )
        return [
            Delivery(lease, position, index, item)
            for position, (index, item) in enumerate(zip(batch.indices, batch.items, strict=True))
        ]

    def free_if_settled(self, lease: Lease) -> None:
        """Free the slot of a lease that has no open message left."""
        if lease.open <= 0 and self.by_slot.pop(lease.slot, None) is not None:
            self._release_slot(lease.slot)
            if lease.alone:
                self.alone = False

    def _release_slot(self, slot: int) -> None:
        self.board.leases.free(slot)
        self._free.append(slot)
