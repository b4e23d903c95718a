"""How a delivery ended, as an outcome of its lease; and the outcomes of a lease that are on their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from qworker.consumer.child.leases.ending_kinds import (
    ACKED,
    BURIED,
    CANCELLED,
    DISCARDED,
    DROPPED,
    KEPT,
    LIMITED,
    NACKED,
    PARKED,
    RELEASED,
)
from qworker.consumer.child.settle.journal_events import times_of

if TYPE_CHECKING:
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.leases.lease import Lease
    from qworker.engine.settle import Outcomes

__all__ = ["InFlightOutcomes", "add_outcome"]


class InFlightOutcomes(msgspec.Struct, frozen=True):
    """Outcomes of one lease that were sent and are not confirmed; they end `messages` messages."""

    lease: Lease
    outcomes: Outcomes
    messages: int
    heavy: bool = False


def add_outcome(delivery: Delivery, outcomes: Outcomes) -> None:
    """Add how a delivery ended to the outcomes of its lease."""
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
    if delivery.then and kind != KEPT:
        outcomes.relayed = True  # the end of its chain has to be announced
    if kind == KEPT:
        # Its effects say themselves whether they concern other queues.
        lease.note_effects(delivery.index, delivery.effects, times)
    elif kind == NACKED:
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
    elif kind == CANCELLED:
        outcomes.cancel(delivery.index, times=times)
    elif kind == PARKED:
        _park(outcomes, delivery, times)
    elif kind == LIMITED:
        task = delivery.task
        keyed = task is not None and task.task_options.limit_key is not None
        outcomes.limit(delivery.index, delivery.delay_ms, of_parent=keyed, times=times)
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
        # Left to its deadline, or settled by the supervisor: there is nothing to send.
        lease.open -= 1
        lease.partly = True


def _park(outcomes: Outcomes, delivery: Delivery, times: str) -> None:
    """Let a run wait for a time, a signal or a group of calls."""
    parked = delivery.parked
    assert parked is not None
    outcomes.park(
        delivery.index,
        parked.delay_ms,
        parked.name,
        parked.signal,
        keep_ms=parked.keep_ms,
        times=times,
    )
