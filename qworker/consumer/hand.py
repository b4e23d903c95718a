"""The leases of a child: each on its board for the supervisor, and in memory for itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qworker.consumer.delivery import Delivery, Lease

if TYPE_CHECKING:
    from qworker.client.commands.receiving import Batch
    from qworker.consumer.board import Board
    from qworker.consumer.pace import QueuePace

__all__ = ["Entry", "Hand"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A lease that was entered on the board, before the call that may create it; its visibility counts from `begun`."""

    queue: QueuePace
    slot: int
    lease_id: str
    begun: float


class Hand:
    """What a child holds in hand. `alone`: a suspect, beside which nothing else may run."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.leases: dict[int, Lease] = {}
        self.alone = False
        self._free = deque(range(board.leases))

    @property
    def full(self) -> bool:
        """Whether there is no room for another lease."""
        return not self._free

    def enter(self, queue: QueuePace, lease_id: str) -> Entry:
        """Put a new lease on the board, before the call that may create it."""
        slot = self._free.popleft()
        begun = self.board.enter_lease(slot, lease_id, queue.index, queue.visibility_s)
        return Entry(queue, slot, lease_id, begun)

    def leave(self, entry: Entry) -> None:
        """Forget a lease that nothing came of."""
        self.board.free_lease(entry.slot)
        self._free.append(entry.slot)

    def hold(self, entry: Entry, batch: Batch) -> list[Delivery]:
        """Take a batch in hand; returns its messages in order."""
        queue, slot = entry.queue, entry.slot
        visibility_s = (batch.deadline_ms - batch.now_ms) / 1000
        # A resumed lease has less left than it was given, hence the larger of what was seen.
        queue.visibility_s = max(queue.visibility_s, visibility_s)
        lease = Lease(self.board, slot, queue, batch, visibility_s)
        self.leases[slot] = lease
        self.alone = batch.alone
        self.board.hold_lease(
            slot, len(batch.items), entry.begun + visibility_s, queue.visibility_s
        )
        return [
            Delivery(lease, place, index, item)
            for place, (index, item) in enumerate(zip(batch.indices, batch.items, strict=True))
        ]

    def free_if_over(self, lease: Lease) -> None:
        """Let go of a lease of which nothing is open."""
        if lease.open <= 0 and self.leases.pop(lease.slot, None) is not None:
            self.board.free_lease(lease.slot)
            self._free.append(lease.slot)
            if lease.alone:
                self.alone = False
