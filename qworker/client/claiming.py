"""Messages in hand: since when, how often, and taking them over from a receiver that is gone.

A lease has a deadline, not a time of delivery. When it was delivered, or extended last, is the deadline less the
visibility: the queue's, or the one that the lease was asked for with, which its id tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import structlog
from msgspec import structs

from qworker.client import looking
from qworker.client.commands import claiming as commands
from qworker.client.commands import inspecting
from qworker.client.commands.claiming import MAX_CANDIDATES, Claimed
from qworker.client.commands.command import Command
from qworker.client.commands.receiving import UNKNOWN, Batch
from qworker.client.delivering import Deliveries, delivered
from qworker.client.limits import check_count, check_skip, check_visibility_ms
from qworker.client.message import Message, Receipt, Stored, deliver
from qworker.client.options import QueueAttributes
from qworker.client.places import patience_s
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.durations import Duration, duration_ms
from qworker.errors import ProtectionError, QworkerError, StaleReceiptError
from qworker.wire.ids import visibility_of
from qworker.wire.leases import held_items
from qworker.wire.numbers import score_ms, whole

__all__ = ["Pending", "claim", "pending", "received"]

_log = structlog.get_logger(__name__)

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


def pending(
    queue: QueueRef,
    count: int = 10,
    *,
    newest: bool = False,
    elapsed: Duration = 0,
    skip: int = 0,
) -> Plan[list[Pending]]:
    """List messages in hand for `elapsed` or longer, from the earliest deadline or (`newest`) from the latest.

    `skip` messages are left out; they are read all the same.
    """
    check_count(count)
    check_skip(skip)
    elapsed_ms = duration_ms(elapsed, "elapsed")
    shards = yield from queue.every_shard()
    found: list[Pending] = []
    for shard in shards:
        found += yield from _longest(shard, skip + count, elapsed_ms, newest=newest)
    if len(shards) > 1:
        found.sort(key=lambda each: each.deadline_ms, reverse=newest)
    return found[skip : skip + count]


def claim(
    queue: QueueRef, count: int = 1, *, elapsed: Duration, visibility: Duration | None = None
) -> Plan[list[Message]]:
    """Take over up to `count` messages whose receivers were last heard of `elapsed` ago, longest first.

    Their deliveries end as if their leases had run out: counted, dead at max receives, and a message that may have
    cost its receiver's life comes in a lease of its own. See `pending`; of at most 500 leases. A shard that cannot be
    claimed from is logged (`claim_failed`); its error is raised only where all of them failed.
    """
    check_count(count)
    own_ms, elapsed_ms = check_visibility_ms(visibility), duration_ms(elapsed, "elapsed")
    shards = yield from queue.every_shard()
    messages: list[Message] = []
    failed = 0
    with Deliveries() as leases:
        for shard in shards:
            left = count - len(messages)
            if left <= 0:
                break
            plan = _claim(shard, left, elapsed_ms, own_ms, messages, leases)
            if len(shards) > 1:
                plan = each_soon(plan, patience_s(shard))
            try:
                yield from plan
            except QworkerError as error:
                if len(shards) == 1 and not messages:
                    raise
                failed += 1
                _log.warning("claim_failed", queue=shard.keys.queue, error=str(error))
        if failed == len(shards) and not messages:
            # Whatever it is, it may pass; and if not, this is the error to be raised.
            yield from _claim(shards[0], count, elapsed_ms, own_ms, messages, leases)
    return messages


def received(queue: QueueRef, receipt: Receipt | str) -> Plan[Message]:
    """Read the message of a receipt again, to settle it elsewhere. Raises `StaleReceiptError`. Three calls."""
    if isinstance(receipt, str):
        receipt = Receipt.parse(receipt)
    queue = queue.shard(receipt.shard)
    lease = queue.keys.lease(receipt.lease_id)
    flat: list[bytes] = yield Command(None, (), ("HGETALL", lease), list)
    item = dict(held_items(flat)).get(receipt.index.encode())
    words = ("ZSCORE", queue.keys.unacked, receipt.lease_id)
    score: bytes | None = yield Command(None, (), words, _as_it_is)
    message = None
    if item is not None and score is not None:
        _, visibility_ms = yield from _standing(queue)
        deadline_ms = score_ms(score)
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
        message = deliver(queue.keys, batch, 0)
        if message is not None and (queue.protected or "e" in message.flags):
            try:
                message = queue.opened(message, item)
            except ProtectionError as error:
                # It can be settled without being read.
                message = structs.replace(message, closed=error.problem)
    if message is None:
        raise StaleReceiptError(queue.keys.queue, str(receipt))
    return message


def _claim(
    queue: QueueRef,
    count: int,
    elapsed_ms: int,
    own_ms: int | None,
    messages: list[Message],
    leases: Deliveries,
) -> Plan[None]:
    """Claim up to `count` messages of one shard; they are added to `messages` lease by lease, whatever comes after."""
    most = len(messages) + count
    now_ms, queue_ms = yield from _standing(queue)
    held = yield from _leases(queue, 0, newest=False, visibility_ms=queue_ms)
    idle = sorted(
        (each for each in held if now_ms - each.delivered_ms >= elapsed_ms),
        key=lambda each: each.delivered_ms,
    )
    while idle and len(messages) < most:
        some = idle[:MAX_CANDIDATES]
        lease_id = queue.ids.lease_id(own_ms)
        leases.enter(queue, lease_id)
        try:
            claimed: Claimed = yield commands.claim(
                queue.keys,
                lease_id,
                [(each.id, each.deadline_ms) for each in some],
                most - len(messages),
                visibility_ms=own_ms,
            )
        except QworkerError as error:
            leases.failed(queue, lease_id, error)
            raise
        if not claimed.batch.items:
            leases.absent(lease_id)
        messages += yield from delivered(queue, claimed.batch, leases)
        if not claimed.batch.items and not claimed.ended:
            idle = idle[MAX_CANDIDATES:]


def _longest(queue: QueueRef, count: int, elapsed_ms: int, *, newest: bool) -> Plan[list[Pending]]:
    """List the messages in hand of one shard."""
    now_ms, visibility_ms = yield from _standing(queue)
    found: list[Pending] = []
    first = 0
    while len(found) < count:
        leases = yield from _leases(queue, first, newest=newest, visibility_ms=visibility_ms)
        if not leases:
            break
        first += _PAGE
        for lease in leases:
            if now_ms - lease.delivered_ms < elapsed_ms:
                continue
            held = yield from looking.lease(queue, lease.id, lease.deadline_ms)
            found += [_pending(each, lease, now_ms) for each in (held[::-1] if newest else held)]
            if len(found) >= count:
                break
    return found


def _standing(queue: QueueRef) -> Plan[tuple[int, int]]:
    """The server's time, and the queue's visibility."""
    seen: inspecting.Inspection = yield inspecting.inspect(queue.keys)
    visibility_ms = whole(seen.meta.get("visibility_ms"))
    return seen.now_ms, QueueAttributes().visibility_ms if visibility_ms is None else visibility_ms


def _leases(queue: QueueRef, first: int, *, newest: bool, visibility_ms: int) -> Plan[list[_Lease]]:
    verb = "ZREVRANGE" if newest else "ZRANGE"
    words = (verb, queue.keys.unacked, first, first + _PAGE - 1, "WITHSCORES")
    flat: list[Any] = yield Command(None, (), words, list)
    leases = []
    for name, deadline_ms in looking.scored(flat):
        lease_id = name.decode("utf-8", "replace")
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


def _as_it_is(reply: Any) -> Any:
    return reply
