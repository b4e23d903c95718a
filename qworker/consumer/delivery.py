"""What a child holds in hand: leases, and the messages in them on their way through a handler."""

from __future__ import annotations

from re import Match
from typing import TYPE_CHECKING, Any, Final

from qworker.app.context import Context
from qworker.client.commands.settling import Outcomes
from qworker.consumer.board import boot_time
from qworker.wire.envelope import Envelope, Kind, kind_of
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.client.commands.receiving import Batch
    from qworker.consumer.board import Board
    from qworker.consumer.pace import QueuePace

__all__ = [
    "ACKED",
    "BURIED",
    "DISCARDED",
    "DROPPED",
    "EXPIRED",
    "LEFT",
    "NACKED",
    "NOT_STARTED",
    "RELEASED",
    "Delivery",
    "Lease",
]

# How a delivery ended, `Delivery.kind`. These are the letters of `lua/lib/outcomes.lua`:
ACKED: Final = "a"
NACKED: Final = "n"
BURIED: Final = "b"
DISCARDED: Final = "d"
RELEASED: Final = "r"
# And these need no settling, or another one: never started and given back; never started and not ours any more;
# started and left to its deadline.
DROPPED: Final = "-"
LEFT: Final = "l"
EXPIRED: Final = "x"
NOT_STARTED: Final = (DROPPED, LEFT)

_NO_KWARGS: Final[dict[str, Any]] = {}
_NO_ERROR: Final = ("", "")


class Lease:
    """One received batch. `open` messages of it are not settled yet; `outcomes` are what is to be told next."""

    __slots__ = (
        "_board",
        "_deadline_at",
        "_margin_s",
        "acked",
        "alone",
        "cancelled",
        "delivered",
        "id",
        "journal",
        "marks_at",
        "now_ms",
        "open",
        "outcomes",
        "partly",
        "queue",
        "recall_at",
        "slot",
        "start_by",
        "took",
        "took_s",
        "untold",
    )

    def __init__(
        self, board: Board, slot: int, queue: QueuePace, batch: Batch, visibility_s: float
    ) -> None:
        self.slot = slot
        self.id = batch.lease_id
        self.queue = queue
        self.now_ms = batch.now_ms
        self.alone = batch.alone
        #: The journal is to be told of what is acked.
        self.journal = batch.journal
        self.open = len(batch.items)
        self.outcomes = Outcomes(batch.lease_id)
        #: And this of it: headers, seconds from the delivery to the start, and those that it ran, by task.
        self.acked: dict[Task[..., Any], tuple[list[bytes], list[float], list[float]]] = {}
        #: When that was, `now_ms` in seconds of `boot_time`; only where the journal is on.
        self.delivered = 0.0
        #: What could not be told: outcomes, and the number of messages that they end.
        self.untold: list[tuple[Outcomes, int]] = []
        #: Something of the lease was settled or given up already: '*' would not be all of it.
        self.partly = False
        #: Its async handlers were cancelled, because it is lost.
        self.cancelled = False
        #: Handlers of the lease that have ended since the pace was last told, and their seconds.
        self.took = 0
        self.took_s = 0.0
        #: Nothing starts after it, in seconds of `boot_time`. The supervisor moves deadlines on: see `may_start`.
        self.start_by = 0.0
        self.marks_at = board.marks_at(slot)
        self.recall_at = board.lease_base(slot) + 1
        self._deadline_at = board.deadline_at(slot)
        # Nothing starts in the last fifth of a lease.
        self._margin_s = visibility_s / 5
        self._board = board
        if self.journal:
            entered = board.lease(slot)
            if entered is not None:
                clock = queue.server_clock
                self.delivered = clock.note(batch.now_ms, entered.begun, boot_time())
                board.note_delivered(slot, self.delivered, batch.now_ms)

    def may_start(self, now: float) -> bool:
        """Whether enough of the lease is left to start a message. Asked only past `start_by`, which it moves on."""
        self.start_by = self._board.floats[self._deadline_at] - self._margin_s
        return now <= self.start_by

    @property
    def lost(self) -> bool:
        """Whether it has run out: others have its messages now, or soon."""
        return self._board.lost(self.slot)

    def take_outcomes(self) -> tuple[Outcomes, int]:
        """Take what is to be told, and the number of messages that it ends."""
        if self.untold:
            return self.untold.pop()
        outcomes = self.outcomes
        number = len(outcomes)
        if not self.partly and number == self.open and len(outcomes.acks) == number:
            # Every message of the lease was handled: one word says it.
            outcomes.ack_all = True
            outcomes.acks = []
        self.partly = True
        self.outcomes = Outcomes(self.id)
        return outcomes, number


class Delivery:
    """One message in hand. `index` is its name in the lease, `place` its mark's place on the board.

    Slots, and all of them filled: a quarter of a microsecond less than a dict for each message.
    """

    __slots__ = (
        "_context",
        "_envelope",
        "acked",
        "args",
        "cancelled_for",
        "delay_ms",
        "error",
        "first",
        "index",
        "item",
        "kind",
        "kwargs",
        "lease",
        "limit",
        "mark_at",
        "member",
        "outcome",
        "place",
        "reason",
        "started",
        "task",
        "took_s",
    )

    def __init__(self, lease: Lease, place: int, index: str, item: bytes) -> None:
        self.lease = lease
        self.place = place
        self.index = index
        self.item = item
        self.mark_at = lease.marks_at + place
        #: The header, where the runner has found it to be that of a first delivery; else None.
        self.first: Match[bytes] | None = None
        self.task: Task[..., Any] | None = None
        self.args: tuple[Any, ...] = ()
        self.kwargs = _NO_KWARGS
        #: Acked before its start (at most once): its end is told to nobody.
        self.acked = False
        #: Not the first message of a call of a batch handler.
        self.member = False
        #: When the handler began and must have ended, in seconds of `boot_time` (0: not begun; no limit), and how long
        #: it ran.
        self.started = 0.0
        self.limit = 0.0
        self.took_s = 0.0
        self.cancelled_for = ""
        self.kind = ""
        self.outcome = 0
        self.delay_ms = 0
        self.reason = ""
        self.error = _NO_ERROR
        self._envelope: Envelope | None = None
        self._context: Context | None = None

    def envelope(self) -> Envelope | None:
        """The header in its parts; None for a foreign item."""
        envelope = self._envelope
        if envelope is None:
            envelope = Envelope.parse(self.item)
            if envelope is None and kind_of(self.item) is Kind.PLAIN:
                envelope = Envelope.adopt(self.adopted_id, self.lease.now_ms, self.item)
            self._envelope = envelope
        return envelope

    @property
    def adopted_id(self) -> str:
        """The message id of a plain item."""
        return f"{self.lease.id}.{self.index}"

    @property
    def ready_ms(self) -> int | None:
        """When the message became ready, by the server's clock; None where that is not known."""
        first = self.first
        if first is not None and first[2] is None:
            return int(first[1])
        envelope = self.envelope()
        return None if envelope is None else envelope.ready_ms

    @property
    def unknown_since_ms(self) -> int:
        """When a worker first said that it knows no such task or key: now, unless the message tells otherwise."""
        envelope = self.envelope()
        noted = envelope.flags.get("k") if envelope is not None and envelope.has_flags else None
        since_ms = whole(noted)
        return self.lease.now_ms if since_ms is None else min(since_ms, self.lease.now_ms)

    def unique_key(self) -> str | None:
        """The unique key that the message holds, if any."""
        first = self.first
        if first is not None and first[2] is None:
            return None
        envelope = self.envelope()
        return envelope.flags.get("u") if envelope is not None and envelope.has_flags else None

    def context(self) -> Context:
        """What the handler can know of its message; made when it is first asked for."""
        context = self._context
        if context is None:
            envelope = self.envelope()
            assert envelope is not None
            context = Context(
                self.lease.queue.name,
                self.task.name if self.task else "",
                envelope.id,
                sent_ms=envelope.sent_ms,
                receive_count=envelope.receives + 1,
                nacks=envelope.nacks,
                timeouts=envelope.timeouts,
                flags=envelope.flags if envelope.has_flags else {},
                body=envelope.body,
                lease=self.lease,
            )
            # Types of the user's own may ask while their values are made, when the task is not known yet.
            if self.task is not None:
                self._context = context
        return context
