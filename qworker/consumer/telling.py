"""Tells the server how messages ended: outcomes ride on the next receive of their queue, or are flushed after 20 ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.client.commands.receiving import settle_receive
from qworker.client.commands.settling import Outcomes
from qworker.consumer.board import boot_time
from qworker.consumer.delivery import (
    ACKED,
    BURIED,
    DISCARDED,
    DROPPED,
    NACKED,
    RELEASED,
)
from qworker.consumer.events import take_acked, times_of
from qworker.errors import QworkerError, UnfinishedError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.client.commands.receiving import Batch
    from qworker.consumer.delivery import Delivery, Lease
    from qworker.consumer.hand import Hand
    from qworker.consumer.link import Link
    from qworker.consumer.measures import Measures
    from qworker.consumer.pace import QueuePace
    from qworker.wire.ids import IdSource

__all__ = ["FLUSH_S", "Teller", "Told", "tell"]

_log = guarded(__name__)

#: Outcomes wait so long at most.
FLUSH_S: Final = 0.02
#: How long the outcomes of a queue that cannot be settled wait for the next try.
_REFUSED_PAUSE_S: Final = 5.0
#: Leases that one call settles.
_MAX_LEASES: Final = 64


@dataclass(frozen=True, slots=True)
class Told:
    """Outcomes of one lease that are on their way, and how many messages they end."""

    lease: Lease
    outcomes: Outcomes
    number: int


class Teller:
    """Collects how deliveries ended. `started`: those of them that were not given back.

    `who` makes the calls, `<host>:<pid>` of the supervisor, for the journal.
    """

    def __init__(
        self, hand: Hand, link: Link, measures: Measures, ids: IdSource, *, who: str = ""
    ) -> None:
        self.who = who
        self._hand = hand
        self._link = link
        self._measures = measures
        self._ids = ids
        self._refused_until: dict[str, float] = {}
        #: When the first outcome came that is not told yet, None where there is none.
        self.untold_since: float | None = None
        self.started = 0

    def note(self, delivery: Delivery) -> None:
        """Take note of a delivery that has ended."""
        lease = delivery.lease
        tell(delivery, lease.outcomes)
        if delivery.kind != DROPPED:
            self.started += 1
        self._measures.note(delivery)
        if not lease.open:
            if delivery.acked:
                # Its end is told to nobody, who else would take its time into the pace.
                self._measures.learn(lease)
            self._hand.free_if_over(lease)
        elif self.untold_since is None:
            self.untold_since = boot_time()

    def take(self, queue: QueuePace) -> list[Told]:
        """Take the outcomes of one queue's leases, up to what one call may carry; then call `settled` or `refused`."""
        if self.untold_since is None:
            return []
        taken: list[Told] = []
        left = False
        for lease in self._hand.leases.values():
            if not (lease.outcomes or lease.untold):
                continue
            if lease.queue is queue and len(taken) < _MAX_LEASES:
                self._measures.learn(lease)
                lease.outcomes.groups += take_acked(lease)
                taken.append(Told(lease, *lease.take_outcomes()))
                left = left or bool(lease.outcomes or lease.untold)
            else:
                left = True
        if taken and not left:
            self.untold_since = None
        return taken

    def settled(self, told: Sequence[Told], held: Sequence[int]) -> None:
        """Note what the server says: how many messages of each lease it has settled."""
        for each, number in zip(told, held, strict=True):
            lease = each.lease
            lease.open -= each.number
            if number < each.number:
                self._hand.board.stale += each.number - number
            self._hand.free_if_over(lease)

    def refused(self, queue: QueuePace, told: Sequence[Told], error: QworkerError) -> None:
        """Keep what could not be told; it is tried again in 5 s, and the supervisor keeps the leases as long.

        Outcomes that may have been applied in part are not told again: one that moves a message would do so every 5 s.
        What they left in a lease comes back when that runs out.
        """
        if isinstance(error, UnfinishedError):
            self.settled(told, [each.number for each in told])
            return
        for each in told:
            each.lease.untold.append((each.outcomes, each.number))
        if told:
            self._refused_until[queue.place] = boot_time() + _REFUSED_PAUSE_S
            self.untold_since = self.untold_since or boot_time()

    def due_in(self) -> float | None:
        """Seconds until outcomes have to be told; None where there are none."""
        if self.untold_since is None:
            return None
        now = boot_time()
        waits = [
            max(self.untold_since + FLUSH_S, self._refused_until.get(name, 0.0)) - now
            for name in self._untold_queues()
        ]
        return max(0.0, min(waits)) if waits else None

    def flush(self, *, last: bool = False) -> None:
        """Tell everything now, what concerns several queues in one trip. Nothing may be in flight.

        `last`: also what was refused lately. Raises `Abandoned`.
        """
        refused: set[str] = set()
        while True:
            now = boot_time()
            begun: list[tuple[QueuePace, list[Told]]] = []
            for place, queue in self._untold_queues().items():
                if place in refused or (not last and self._refused_until.get(place, 0.0) > now):
                    continue
                told = self.take(queue)
                # A receive of nothing: it settles without an answer per message.
                nothing = self._ids.lease_id()
                outcomes = [each.outcomes for each in told]
                self._link.begin(
                    settle_receive(queue.keys, nothing, 0, outcomes=outcomes, who=self.who)
                )
                begun.append((queue, told))
            if not begun:
                return
            for queue, told in begun:
                try:
                    batch: Batch = self._link.finish()
                except QworkerError as error:
                    _log.error("settle_refused", queue=queue.place, error=str(error))
                    self.refused(queue, told, error)
                    refused.add(queue.place)
                else:
                    self.settled(told, batch.settled)

    def _untold_queues(self) -> dict[str, QueuePace]:
        if self.untold_since is None:
            return {}
        return {
            lease.queue.place: lease.queue
            for lease in self._hand.leases.values()
            if lease.outcomes or lease.untold
        }


def tell(delivery: Delivery, outcomes: Outcomes) -> None:
    """Add the end of a delivery to the outcomes of its lease."""
    lease, kind = delivery.lease, delivery.kind
    if delivery.acked:
        lease.open -= 1
        return
    if kind == ACKED:
        unique = delivery.unique_key()
        if unique is None:
            outcomes.acks.append(delivery.index)
        else:
            envelope = delivery.envelope()
            assert envelope is not None
            outcomes.uniques += (delivery.index, unique, envelope.id)
        return
    times = times_of(delivery) if lease.journal else ""
    if kind == NACKED:
        task = delivery.task
        envelope = delivery.envelope()
        first = envelope.flags.get("f") if envelope and envelope.has_flags else None
        outcomes.nack(
            delivery.index,
            delivery.delay_ms,
            max_receives=task.task_options.max_receives if task else None,
            first_received_ms=lease.now_ms if first is None else None,
            error=delivery.error,
            times=times,
        )
    elif kind == BURIED:
        outcomes.bury(delivery.index, delivery.reason, delivery.error, times=times)
    elif kind == DISCARDED:
        outcomes.discard(delivery.index, times=times)
    elif kind in (RELEASED, DROPPED):
        outcomes.release(
            delivery.index,
            delivery.delay_ms,
            started=kind == RELEASED and not delivery.reason,
            unknown_since_ms=delivery.unknown_since_ms if delivery.reason else None,
            error=delivery.error,
            times=times,
        )
    else:
        # Left to its deadline, or settled by the supervisor: nothing to tell, but no longer in hand.
        lease.open -= 1
        lease.partly = True
