"""Leases that a child holds: what is left of their time, and the outcomes to send for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board.clock import boot_time
from qworker.engine.effects import LIGHT, Effect, size_of
from qworker.engine.settle import Outcomes

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.engine.receive import Batch

__all__ = ["Lease"]

#: Results of one call, in bytes: others wait for it.
_CALL_BYTES: Final = 2**20


class Lease:
    """One received batch. `open` messages of it are not settled yet; `outcomes` are sent with the next call."""

    __slots__ = (
        "_board",
        "_deadline_at",
        "_margin_s",
        "acked",
        "alone",
        "cancelled",
        "delivered",
        "heavy",
        "id",
        "journal",
        "marks_at",
        "now_ms",
        "open",
        "outcomes",
        "partly",
        "queue",
        "recall_at",
        "refused",
        "refused_heavy",
        "slot",
        "start_by",
        "took",
        "took_s",
    )

    def __init__(
        self, board: Board, slot: int, queue: QueueState, batch: Batch, visibility_s: float
    ) -> None:
        self.slot = slot
        self.id = batch.lease_id
        self.queue = queue
        self.now_ms = batch.now_ms
        self.alone = batch.alone
        #: Acked messages are written to the journal.
        self.journal = batch.journal
        self.open = len(batch.items)
        self.outcomes = Outcomes(batch.lease_id)
        #: Acks whose results take more memory than their messages: they go in their own calls, see `conclude.lua`.
        self.heavy = Outcomes(batch.lease_id)
        #: For the journal, of acked messages by task: headers, seconds from delivery to start, and running times.
        self.acked: dict[Task[..., Any], tuple[list[bytes], list[float], list[float]]] = {}
        #: `now_ms`, when it was delivered, in seconds of `boot_time`; set only if the journal is on.
        self.delivered = 0.0
        #: Outcomes that the server has refused, and the number of messages that they end; and heavy ones, also those
        #: that are enough for a call.
        self.refused: list[tuple[Outcomes, int]] = []
        self.refused_heavy: list[tuple[Outcomes, int]] = []
        #: Some messages were settled or given up already: '*' would not mean all of them.
        self.partly = False
        #: Its async handlers were cancelled because it is lost.
        self.cancelled = False
        #: Handlers of the lease that have ended since its queue last learned of them, and their seconds.
        self.took = 0
        self.took_s = 0.0
        #: Nothing starts after this time of `boot_time`. The supervisor moves deadlines on: see `may_start`.
        self.start_by = 0.0
        self.marks_at = board.leases.marks_at(slot)
        self.recall_at = board.leases.recall_at(slot)
        self._deadline_at = board.leases.deadline_at(slot)
        # Nothing starts in the last fifth of a lease.
        self._margin_s = visibility_s / 5
        self._board = board
        if self.journal:
            entered = board.leases.view(slot)
            if entered is not None:
                clock = queue.server_clock
                self.delivered = clock.note(batch.now_ms, entered.begun, boot_time())
                board.leases.note_delivered(slot, self.delivered, batch.now_ms)

    def may_start(self, now: float) -> bool:
        """Whether enough of the lease is left to start a message. Called only past `start_by`, which it moves on."""
        self.start_by = self._board.floats[self._deadline_at] - self._margin_s
        return now <= self.start_by

    @property
    def lost(self) -> bool:
        """Whether it has run out: other consumers get its messages."""
        return self._board.leases.lost(self.slot)

    @property
    def stopping(self) -> bool:
        """Whether the supervisor wants this process to end."""
        return self._board.stop

    def cancelled_at(self, position: int) -> bool:
        """Whether the message at a position was cancelled after it was received."""
        return self._board.orders.cancelled_at(self.id, position) is not None

    @property
    def unsent(self) -> bool:
        """Whether there are outcomes to send."""
        return bool(self.outcomes or self.refused) or self.has_heavy

    @property
    def has_heavy(self) -> bool:
        """Whether there are heavy outcomes to send."""
        return bool(self.heavy or self.refused_heavy)

    def take_heavy(self) -> tuple[Outcomes, int]:
        """Take the heavy outcomes to send next, as `take_outcomes` does the others."""
        self.partly = True
        if self.refused_heavy:
            return self.refused_heavy.pop()
        outcomes, self.heavy = self.heavy, Outcomes(self.id)
        return outcomes, len(outcomes)

    def note_effects(self, index: str, effects: tuple[Effect, ...], times: str) -> None:
        """Note an ack with effects. Heavy outcomes are set aside once they are enough for a call."""
        if sum(map(size_of, effects)) > LIGHT:
            self.heavy.ack_with(index, effects, times=times)
            if self.heavy.effect_bytes >= _CALL_BYTES:
                self.refused_heavy.append((self.heavy, len(self.heavy)))
                self.heavy = Outcomes(self.id)
        else:
            self.outcomes.ack_with(index, effects, times=times)

    def take_outcomes(self) -> tuple[Outcomes, int]:
        """Take the outcomes to send next, and the number of messages that they end."""
        if self.refused:
            return self.refused.pop()
        outcomes = self.outcomes
        number = len(outcomes)
        if number > 1 and not self.partly and number == self.open and len(outcomes.acks) == number:
            # Every message of the lease was handled. One alone is acked by its index: that has a shorter way.
            outcomes.ack_all = True
            outcomes.acks = []
        self.partly = True
        self.outcomes = Outcomes(self.id)
        return outcomes, number
