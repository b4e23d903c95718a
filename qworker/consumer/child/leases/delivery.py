"""Leases that a child holds, and the messages in them on their way through a handler."""

from __future__ import annotations

from re import Match
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from qworker.app.context import Context
from qworker.app.feed import Feed
from qworker.consumer.board.clock import boot_time
from qworker.engine.settle import LIGHT, Effect, Outcomes, size_of
from qworker.wire.envelope import Envelope, Kind, kind_of
from qworker.wire.numbers import whole
from qworker.wire.result import MAX_KEEP_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qworker.app.control import Parked
    from qworker.app.task import Task
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.engine.receive import Batch

__all__ = [
    "ACKED",
    "BURIED",
    "CANCELLED",
    "DISCARDED",
    "DROPPED",
    "EXPIRED",
    "KEPT",
    "LEFT",
    "LIMITED",
    "NACKED",
    "NOT_STARTED",
    "PARKED",
    "RELEASED",
    "Delivery",
    "Lease",
]

# How a delivery ended, `Delivery.kind`. These are the letters of `lua/lib/outcomes.lua`:
ACKED: Final = "a"
KEPT: Final = "t"  # acked, with effects
NACKED: Final = "n"
BURIED: Final = "b"
DISCARDED: Final = "d"
CANCELLED: Final = "k"
RELEASED: Final = "r"
LIMITED: Final = "l"
PARKED: Final = "p"  # a run that sleeps or waits
# These are not sent as they are: never started, to be given back; not this child's any more; started, and left to its
# deadline.
DROPPED: Final = "-"
LEFT: Final = "~"
EXPIRED: Final = "x"
NOT_STARTED: Final = (DROPPED, LEFT)

_NO_KWARGS: Final[dict[str, Any]] = {}
_NO_ERROR: Final = ("", "")
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


_NO_STEPS: Final = Raw(b"")


class Delivery:
    """One delivered message. `index` names it in its lease, `position` is that of its mark on the board.

    With slots it takes a quarter of a microsecond less than with a dict.
    """

    __slots__ = (
        "_context",
        "_envelope",
        "acked",
        "args",
        "cancelled_for",
        "delay_ms",
        "effects",
        "error",
        "first",
        "gather",
        "index",
        "item",
        "kind",
        "kwargs",
        "lease",
        "limit",
        "mark_at",
        "member",
        "outcome",
        "parked",
        "position",
        "reason",
        "started",
        "task",
        "then",
        "took_s",
    )

    def __init__(self, lease: Lease, position: int, index: str, item: bytes) -> None:
        self.lease = lease
        self.position = position
        self.index = index
        self.item = item
        self.mark_at = lease.marks_at + position
        #: The header, if the runner has matched it as that of a first delivery.
        self.first: Match[bytes] | None = None
        self.task: Task[..., Any] | None = None
        self.args: tuple[Any, ...] = ()
        self.kwargs = _NO_KWARGS
        #: The steps of its chain that follow, as JSON; empty without any.
        self.then = _NO_STEPS
        #: Of a callback: the policy of its group of calls, whose values are its first argument. Until these are read,
        #: its other arguments are JSON, in `kwargs`.
        self.gather = ""
        #: Acked before its start (at most once): its end is not sent.
        self.acked = False
        #: A message of a batch call other than the first.
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
        #: What its ack brings about, of `KEPT`.
        self.effects: tuple[Effect, ...] = ()
        #: How it is parked, of `PARKED`.
        self.parked: Parked | None = None
        self.reason = ""
        self.error = _NO_ERROR
        self._envelope: Envelope | None = None
        self._context: Context | None = None

    def envelope(self) -> Envelope | None:
        """The parsed envelope; None for a foreign item."""
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
        """When the message became ready, by the server's clock; None if unknown."""
        first = self.first
        if first is not None and first[2] is None:
            return int(first[1])
        envelope = self.envelope()
        return None if envelope is None else envelope.ready_ms

    @property
    def unknown_since_ms(self) -> int:
        """When a worker first reported the task or key as unknown: now, unless the message says otherwise."""
        envelope = self.envelope()
        noted = envelope.flags.get("k") if envelope is not None and envelope.has_flags else None
        since_ms = whole(noted)
        return self.lease.now_ms if since_ms is None else min(since_ms, self.lease.now_ms)

    @property
    def keep_ms(self) -> int | None:
        """How long its sender wants its result kept; None if not at all."""
        first = self.first
        if first is not None and first[2] is None:
            return None
        envelope = self.envelope()
        flags = envelope.flags if envelope is not None and envelope.has_flags else {}
        asked_ms = whole(flags.get("r"))
        return min(asked_ms, MAX_KEEP_MS) if asked_ms else None

    @property
    def is_run(self) -> bool:
        """Whether it was sent as a run."""
        envelope = self.envelope()
        return envelope is not None and envelope.has_flags and "c" in envelope.flags

    @property
    def awaited(self) -> bool:
        """Whether its end concerns others: those who wait for its result, its chain, or the steps of its run."""
        envelope = self.envelope()
        flags = envelope.flags if envelope is not None and envelope.has_flags else {}
        return not flags.keys().isdisjoint("rjc")

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled while it ran."""
        return self.lease.cancelled_at(self.position)

    def unique_key(self) -> str | None:
        """The unique key that the message holds, if any."""
        first = self.first
        if first is not None and first[2] is None:
            return None
        envelope = self.envelope()
        return envelope.flags.get("u") if envelope is not None and envelope.has_flags else None

    def unblame(self, flags: Mapping[str, str]) -> None:
        """Forget earlier failures and add flags, as the server has done because a step was recorded."""
        envelope = self.envelope()
        assert envelope is not None
        self.first, self._envelope = None, envelope.unblamed(flags)

    def _feed(self) -> Feed:
        assert self.task is not None
        keys, context = self.lease.queue.keys, self.context()
        return Feed(self.task.app, keys, context.message_id, self.task.task_options.result_ms)

    def context(self) -> Context:
        """The context that handlers see; made on first use."""
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
                position=self.position,
                feed=self._feed,
            )
            # The user's own types may ask for it while their values are made, before the task is known.
            if self.task is not None:
                self._context = context
        return context
