"""Saying what received messages came to, and asking for more time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from qworker.client.commands.extending import split
from qworker.client.commands.settling import Outcomes, Settled, settle
from qworker.client.limits import check_visibility_ms
from qworker.client.message import Message, Receipt
from qworker.client.options import MAX_VISIBILITY_MS
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import where_held
from qworker.durations import Duration, duration_ms
from qworker.errors import StaleReceiptError

__all__ = ["ack", "bury", "extend", "nack", "note_ack", "release", "split_off", "working"]

#: Leases that one call settles.
_LEASES: Final = 64


def ack(queue: QueueRef, *messages: Message) -> Plan[list[Message]]:
    """Finish messages; returns those whose ack counted. A stale one changes nothing."""
    shards: dict[int, list[Message]] = {}
    for message in messages:
        shards.setdefault(message.receipt.shard, []).append(message)
    counted: list[Message] = []
    for number, held in shards.items():
        counted += yield from _ack(queue.shard(number), held)
    return counted


@where_held
def nack(queue: QueueRef, message: Message, *, delay: Duration = 0, error: str = "") -> Plan[None]:
    """Count a failure; the message comes back after `delay`, or is dead at max receives.

    Raises `StaleReceiptError`.
    """
    outcomes = Outcomes(message.receipt.lease_id)
    outcomes.nack(
        message.receipt.index,
        duration_ms(delay, "delay"),
        first_received_ms=message.first_received_ms,
        error=("", error),
    )
    yield from _settle_one(queue, message, outcomes)


@where_held
def release(queue: QueueRef, message: Message, *, delay: Duration = 0) -> Plan[None]:
    """Give a message back uncounted, to the head of ready or after `delay`. Raises `StaleReceiptError`."""
    outcomes = Outcomes(message.receipt.lease_id)
    outcomes.release(message.receipt.index, duration_ms(delay, "delay"))
    yield from _settle_one(queue, message, outcomes)


@where_held
def bury(queue: QueueRef, message: Message, *, error: str = "") -> Plan[None]:
    """Move a message to the dead letters, with reason `rejected`. Raises `StaleReceiptError`."""
    outcomes = Outcomes(message.receipt.lease_id)
    outcomes.bury(message.receipt.index, "rejected", ("", error))
    yield from _settle_one(queue, message, outcomes)


@where_held
def extend(queue: QueueRef, message: Message, visibility: Duration) -> Plan[Message]:
    """Give a message a new visibility timeout from now; 0 makes it visible now.

    Returns the message with its new receipt (the old one is stale). Raises `StaleReceiptError`.
    """
    wanted_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
    if wanted_ms == 0:
        yield from release(queue, message)
        return message
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms)))


@where_held
def working(queue: QueueRef, message: Message, visibility: Duration | None = None) -> Plan[Message]:
    """Say that a message is still worked on: it gets its visibility timeout once more, from now.

    Returns the message with its new receipt and deadline, as `extend` does; but refused when half of its time to
    live is over, so that others have their turn. `visibility` None is the message's own, else the queue's. Raises
    `TooLateError`, `StaleReceiptError`.
    """
    wanted_ms = check_visibility_ms(visibility) or message.own_visibility_ms or None
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms, half=True)))


def split_off(
    queue: QueueRef, message: Message, wanted_ms: int | None, *, half: bool = False
) -> Plan[Message | None]:
    """Give a message a lease of its own; returns it with its new receipt, None where the old one is stale.

    `wanted_ms` None takes the queue's visibility; `half`: refused as `working` is.
    """
    lease_id = queue.ids.lease_id(wanted_ms)
    old = message.receipt
    deadline_ms: int = yield split(
        queue.keys, old.lease_id, old.index, lease_id, wanted_ms, half=half
    )
    if not deadline_ms:
        return None
    return structs.replace(
        message, receipt=Receipt(lease_id, old.index, old.shard), deadline_ms=deadline_ms
    )


def note_ack(outcomes: Outcomes, message: Message) -> None:
    """Add the ack of a message to what its lease came to; one with a unique key releases that too."""
    unique = message.flags.get("u")
    if unique:
        outcomes.uniques += (message.receipt.index, unique, message.id)
    else:
        outcomes.acks.append(message.receipt.index)


def _ack(queue: QueueRef, messages: Sequence[Message]) -> Plan[list[Message]]:
    leases: dict[str, list[Message]] = {}
    for message in messages:
        leases.setdefault(message.receipt.lease_id, []).append(message)
    # The script answers uniques before acks within a lease.
    asked = [sorted(held, key=lambda each: not each.flags.get("u")) for held in leases.values()]
    counted: list[Message] = []
    for first in range(0, len(asked), _LEASES):
        page = asked[first : first + _LEASES]
        outcomes = []
        for held in page:
            outcomes.append(Outcomes(held[0].receipt.lease_id))
            for message in held:
                note_ack(outcomes[-1], message)
        settled: Settled = yield settle(queue.keys, outcomes)
        flat = [message for held in page for message in held]
        counted += [message for message, hit in zip(flat, settled.counted, strict=True) if hit]
    return counted


def _settle_one(queue: QueueRef, message: Message, outcomes: Outcomes) -> Plan[None]:
    settled: Settled = yield settle(queue.keys, [outcomes])
    if not all(settled.counted):
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))


def _held(queue: QueueRef, message: Message, held: Message | None) -> Message:
    if held is None:
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    return held
