"""Extend the visibility of received messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from qworker.client.checks import check_visibility_ms
from qworker.client.lease_pages import by_lease, pages_of, shard_by_shard
from qworker.client.message import Message, Receipt
from qworker.client.per_shard import where_held
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.settle import release, release_all
from qworker.durations import Duration, duration_ms
from qworker.engine.extend import split, split_all
from qworker.engine.options import MAX_VISIBILITY_MS
from qworker.errors import (
    StaleReceiptError,
)

__all__ = ["extend", "extend_all", "split_off", "working"]

#: Messages of one call.
_EXTENDED: Final = 1_000


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


def extend_all(
    queue: QueueRef, messages: Iterable[Message], visibility: Duration
) -> Plan[list[Message]]:
    """Give messages a new visibility timeout from now; 0 makes them visible now.

    In one atomic call per queue or shard (of up to 1,000 messages, and 64 leases). Returns those that were still held,
    in their order and with their new receipts (the old ones are stale); leaves out the others. A failure of one of
    several shards does not affect the others: it is logged (`settle_failed`), and raised only if nothing was held.
    """
    wanted_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
    wanted = list(messages)
    if wanted_ms == 0:
        return (yield from release_all(queue, wanted, 0))
    extended: dict[Receipt, Message] = {}
    #: A call in doubt is repeated with the leases that it may have created.
    new_leases: dict[str, str] = {}
    done: set[str] = set()

    def extend_in(shard: QueueRef, some: Sequence[Message], counted: list[Message]) -> Plan[None]:
        left = {
            message.receipt: message for message in some if message.receipt.lease_id not in done
        }
        for page in pages_of(by_lease(left.values()), _EXTENDED):
            leases = {}
            for lease in page:
                old = lease[0].receipt.lease_id
                new = new_leases.get(old) or new_leases.setdefault(
                    old, shard.ids.lease_id(wanted_ms)
                )
                leases[old] = new, [message.receipt.index for message in lease]
            flat = [message for lease in page for message in lease]
            deadlines: list[int] = yield split_all(shard.keys, leases, wanted_ms)
            done.update(leases)
            for message, deadline_ms in zip(flat, deadlines, strict=True):
                if deadline_ms:
                    old_receipt = message.receipt
                    receipt = structs.replace(
                        old_receipt, lease_id=new_leases[old_receipt.lease_id]
                    )
                    extended[old_receipt] = structs.replace(
                        message, receipt=receipt, deadline_ms=deadline_ms
                    )
                    counted.append(extended[old_receipt])

    yield from shard_by_shard(queue, wanted, extend_in)
    return [extended.pop(message.receipt) for message in wanted if message.receipt in extended]


@where_held
def working(queue: QueueRef, message: Message, visibility: Duration | None = None) -> Plan[Message]:
    """Report that a message is still worked on: it gets its visibility timeout once more, from now.

    Returns the message with its new receipt and deadline, as `extend` does, but is refused once half of its time to
    live is over, to give others a turn. `visibility` None is the message's own, else the queue's. Raises
    `TooLateError`, `StaleReceiptError`.
    """
    wanted_ms = check_visibility_ms(visibility) or message.own_visibility_ms or None
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms, half=True)))


def split_off(
    queue: QueueRef, message: Message, wanted_ms: int | None, *, half: bool = False
) -> Plan[Message | None]:
    """Give a message its own lease; returns it with its new receipt, None if the old one is stale.

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


def _held(queue: QueueRef, message: Message, extended: Message | None) -> Message:
    if extended is None:
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    return extended
