"""Messages in hand: since when, how often, and taking them over from a receiver that is gone.

A lease has a deadline, not a time of delivery. When it was delivered, or extended last, is the deadline less the
visibility: the queue's, or the one that the lease was asked for with, which its id tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands import upkeep
from qworker.client.commands.claiming import MAX_CANDIDATES, Claimed, claim
from qworker.client.commands.command import Command
from qworker.client.commands.receiving import UNKNOWN, Batch
from qworker.client.message import Message, Receipt, Stored, deliver
from qworker.client.options import QueueAttributes
from qworker.errors import StaleReceiptError
from qworker.wire.ids import visibility_of

if TYPE_CHECKING:
    from qworker.client.operations import Operations, Plan

__all__ = ["Pending", "claim_pending", "list_pending", "received"]

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Pending:
    """A received message that is not settled. Times in ms since 1970 by the server's clock.

    `delivered_ms`: its last delivery, or the last time that its receiver extended it. `elapsed_ms`: since then.
    `deliveries`: with this one. Both times count a lease by its visibility; where the queue's was changed since, they
    are off by the difference.
    """

    id: str
    body: bytes
    receipt: Receipt
    deliveries: int
    delivered_ms: int
    elapsed_ms: int
    deadline_ms: int
    stored: Stored


@dataclass(frozen=True, slots=True)
class _Lease:
    id: str
    deadline_ms: int
    delivered_ms: int


def list_pending(
    queue: Operations, count: int, *, newest: bool, elapsed_ms: int, skip: int
) -> Plan[list[Pending]]:
    """List up to `count` messages in hand for `elapsed_ms` or longer, the earliest deadline first or last.

    `skip` messages are left out. O(skip + count) messages are read.
    """
    now_ms, visibility_ms = yield from _standing(queue)
    found: list[Pending] = []
    first = 0
    while len(found) < skip + count:
        leases = yield from _leases(queue, first, newest=newest, visibility_ms=visibility_ms)
        if not leases:
            break
        first += _PAGE
        for lease in leases:
            if now_ms - lease.delivered_ms < elapsed_ms:
                continue
            held = yield from queue.lease(lease.id, lease.deadline_ms)
            found += [_pending(each, lease, now_ms) for each in (held[::-1] if newest else held)]
            if len(found) >= skip + count:
                break
    return found[skip : skip + count]


def claim_pending(
    queue: Operations, count: int, *, elapsed_ms: int, visibility_ms: int | None
) -> Plan[list[Message]]:
    """Take over up to `count` messages whose receivers have not been heard of for `elapsed_ms`.

    Those longest in hand come first, of at most 500 leases. Each call of the script makes a lease.
    """
    now_ms, queue_visibility_ms = yield from _standing(queue)
    leases = yield from _leases(queue, 0, newest=False, visibility_ms=queue_visibility_ms)
    idle = sorted(
        (each for each in leases if now_ms - each.delivered_ms >= elapsed_ms),
        key=lambda each: each.delivered_ms,
    )
    messages: list[Message] = []
    while idle and len(messages) < count:
        some = idle[:MAX_CANDIDATES]
        lease_id = queue.ids.lease_id(visibility_ms)
        claimed: Claimed = yield claim(
            queue.keys,
            lease_id,
            [(each.id, each.deadline_ms) for each in some],
            count - len(messages),
            visibility_ms=visibility_ms,
        )
        messages += yield from queue.delivered(claimed.batch, pop=False)
        if not claimed.batch.items and not claimed.ended:
            idle = idle[MAX_CANDIDATES:]
    return messages


def _standing(queue: Operations) -> Plan[tuple[int, int]]:
    """The server's time, and the queue's visibility."""
    seen: upkeep.Inspection = yield upkeep.inspect(queue.keys)
    visibility = seen.meta.get("visibility_ms", "")
    default_ms = QueueAttributes().visibility_ms
    return seen.now_ms, int(visibility) if visibility.isdecimal() else default_ms


def _leases(
    queue: Operations, first: int, *, newest: bool, visibility_ms: int
) -> Plan[list[_Lease]]:
    verb = "ZREVRANGE" if newest else "ZRANGE"
    words = (verb, queue.keys.unacked, first, first + _PAGE - 1, "WITHSCORES")
    flat: list[Any] = yield Command(None, (), words, list)
    leases = []
    for name, score in zip(flat[::2], flat[1::2], strict=True):
        lease_id, deadline_ms = name.decode("utf-8", "replace"), int(float(score))
        own_ms = visibility_of(lease_id)
        held_ms = visibility_ms if own_ms is None else own_ms
        leases.append(_Lease(lease_id, deadline_ms, deadline_ms - held_ms))
    return leases


def _pending(stored: Stored, lease: _Lease, now_ms: int) -> Pending:
    return Pending(
        stored.id,
        stored.body,
        stored.receipt or Receipt(lease.id, "0"),
        stored.receives + 1,
        lease.delivered_ms,
        max(0, now_ms - lease.delivered_ms),
        lease.deadline_ms,
        stored,
    )


def received(queue: Operations, receipt: Receipt) -> Plan[Message]:
    """Read the message of a receipt again, to settle it. Raises `StaleReceiptError`."""
    lease = queue.keys.lease(receipt.lease_id)
    item: bytes | None = yield Command(None, (), ("HGET", lease, receipt.index), _as_it_is)
    words = ("ZSCORE", queue.keys.unacked, receipt.lease_id)
    score: bytes | None = yield Command(None, (), words, _as_it_is)
    message = None
    if item is not None and score is not None:
        _, visibility_ms = yield from _standing(queue)
        deadline_ms = int(float(score))
        own_ms = visibility_of(receipt.lease_id)
        delivered_ms = deadline_ms - (visibility_ms if own_ms is None else own_ms)
        batch = Batch(
            receipt.lease_id,
            [item],
            [receipt.index],
            delivered_ms,
            deadline_ms,
            ready_left=0,
            hint_ms=UNKNOWN,
            alone=False,
            degraded=False,
            settled=(),
        )
        message = deliver(queue.keys.queue, batch, 0)
    if message is None:
        raise StaleReceiptError(queue.keys.queue, str(receipt))
    return message


def _as_it_is(reply: Any) -> Any:
    return reply
