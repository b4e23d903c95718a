"""What a child holds in hand: leases, and the messages in them on their way through a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qworker.app.context import Context
from qworker.commands.receiving import Outcomes
from qworker.envelope import Envelope, Kind, kind_of

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.commands.receiving import Batch
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

# How a delivery ended, `Delivery.kind`. These are the letters of `lua/lib/settle.lua`:
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
#: The counters of a first delivery.
_FRESH: Final = [b"0", b"0", b"0", b"0"]


class Lease:
    """One received batch. `open` messages of it are not settled yet; `outcomes` are what is to be told next."""

    __slots__ = (
        "_board",
        "alone",
        "cancelled",
        "deadline_at",
        "id",
        "margin_s",
        "marks_at",
        "now_ms",
        "open",
        "outcomes",
        "partly",
        "queue",
        "recall_at",
        "slot",
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
        self.open = len(batch.items)
        self.outcomes = Outcomes(batch.lease_id)
        #: What could not be told: outcomes, and the number of messages that they end.
        self.untold: list[tuple[Outcomes, int]] = []
        #: Something of the lease was settled or given up already: '*' would not be all of it.
        self.partly = False
        #: Its async handlers were cancelled, because it is lost.
        self.cancelled = False
        #: Handlers of the lease that have ended since the pace was last told, and their seconds.
        self.took = 0
        self.took_s = 0.0
        self.marks_at = board.marks_at(slot)
        self.recall_at = board.lease_base(slot) + 1
        self.deadline_at = board.deadline_at(slot)
        # Nothing starts in the last fifth of a lease.
        self.margin_s = visibility_s / 5
        self._board = board

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
    """One message in hand."""

    # No slots: what most deliveries never change stands in the class, and making one sets five fields.
    _envelope: Envelope | None = None
    _context: Context | None = None
    task: Task[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs = _NO_KWARGS
    kind = ""
    outcome = 0
    delay_ms = 0
    reason = ""
    error = ("", "")
    #: Seconds of `boot_time`; the limit is 0 where there is none.
    started = 0.0
    limit = 0.0
    took_s = 0.0
    cancelled_for = ""
    asyncio_task: Any = None
    #: Acked before its start (at most once): its end is told to nobody.
    acked = False
    #: Not the first message of a call of a batch handler.
    member = False
    #: When it was sent, where `read_fresh` has seen that it is a first delivery without flags; else None.
    fresh_ms: int | None = None

    def __init__(self, lease: Lease, place: int, index: str, item: bytes) -> None:
        self.lease = lease
        self.place = place
        self.index = index
        self.item = item
        self.mark_at = lease.marks_at + place

    def read_fresh(self) -> bytes | None:
        """Return the body of a first delivery without flags, as nearly all are; None for any other item.

        A look at such a header costs a third of parsing it, and nobody asks for its parts.
        """
        head, _, body = self.item.partition(b"\n")
        words = head.split(b" ")
        if words[3:] == _FRESH and words[0] == b"q1" and words[1].isalnum() and len(words[1]) <= 64:
            sent = words[2]
            if sent.isdigit() and len(sent) <= 16:
                self.fresh_ms = int(sent)
                return body
        return None

    def envelope(self) -> Envelope | None:
        """Read the header, once; None for a foreign item."""
        envelope = self._envelope
        if envelope is None:
            envelope = Envelope.parse(self.item)
            if envelope is None and kind_of(self.item) is Kind.PLAIN:
                name = f"{self.lease.id}.{self.index}"
                envelope = Envelope.adopt(name, self.lease.now_ms, self.item)
            self._envelope = envelope
        return envelope

    def unique_key(self) -> str | None:
        """The unique key that the message holds, if any."""
        if self.fresh_ms is not None:
            return None
        envelope = self.envelope()
        return envelope.flags.get("u") if envelope is not None and envelope.has_flags else None

    def context(self) -> Context:
        """What the handler can know of its message; made when it is first asked for."""
        context = self._context
        if context is None:
            envelope = self.envelope()
            assert envelope is not None
            context = self._context = Context(
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
        return context
