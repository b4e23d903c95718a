"""Unacked messages: list them, and take them over from a receiver that is gone.

A lease has a deadline, not a time of delivery. Its delivery, or last extension, is the deadline minus the visibility:
the queue's, or the lease's own, which is part of its id.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import structs

from qworker.client.checks import check_count, check_skip, check_visibility_ms
from qworker.client.inspect import peek
from qworker.client.message import Message, Receipt, Stored, deliver
from qworker.client.per_shard import chained, each_readable
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.receive.deliver import NewLeases, delivered
from qworker.client.receive.receive_pass import patience_s
from qworker.durations import Duration, duration_ms
from qworker.engine import claim as commands
from qworker.engine import inspect
from qworker.engine.claim import MAX_CANDIDATES, Claimed
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.receive import UNKNOWN, Batch
from qworker.errors import ProtectionError, QworkerError, StaleReceiptError
from qworker.telemetry.logger import logger
from qworker.wire.ids import visibility_of
from qworker.wire.leases import held_items
from qworker.wire.numbers import score_ms, whole

__all__ = ["Pending", "claim", "pending", "received"]

_log = logger(__name__)

_PAGE: Final = 500


class Pending(msgspec.Struct, frozen=True):
    """A received message that is not settled. Times in ms since 1970 by the server's clock.

    `delivered_ms`: its last delivery or extension. `elapsed_ms`: since then. `deliveries`: including this one. Both
    times are computed from the visibility; if the queue's has changed since, they are off by the difference.
    """

    id: str
    body: bytes
    receipt: Receipt
    deliveries: int
    delivered_ms: int
    elapsed_ms: int
    deadline_ms: int
    stored: Stored


class _Lease(msgspec.Struct, frozen=True):
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
    """List unacked messages delivered `elapsed` ago or earlier, from the earliest deadline or (`newest`) the latest.

    Leaves out the first `skip`, which are still read.
    """
    check_count(count)
    check_skip(skip)
    elapsed_ms = duration_ms(elapsed, "elapsed")
    shards = yield from queue.every_shard()
    messages = chained(
        (
            yield from each_readable(
                shards,
                lambda shard: _pending_in(shard, skip + count, elapsed_ms, newest=newest),
            )
        )
    )
    if len(shards) > 1:
        messages.sort(key=lambda message: message.deadline_ms, reverse=newest)
    return messages[skip : skip + count]


def claim(
    queue: QueueRef, count: int = 1, *, elapsed: Duration, visibility: Duration | None = None
) -> Plan[list[Message]]:
    """Take over up to `count` messages delivered or extended `elapsed` ago or earlier, the longest first.

    Their deliveries end as if their leases had run out: counted, dead at max receives, and a message that may have
    killed its receiver comes in its own lease. See `pending`; of at most 500 leases. A shard that cannot be
    claimed from is logged (`claim_failed`); its error is raised only if all of them failed.
    """
    check_count(count)
    own_ms, elapsed_ms = check_visibility_ms(visibility), duration_ms(elapsed, "elapsed")
    shards = yield from queue.every_shard()
    messages: list[Message] = []
    failed = 0
    with NewLeases() as leases:
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
            # It may have passed; if not, this error is raised.
            yield from _claim(shards[0], count, elapsed_ms, own_ms, messages, leases)
    return messages


def received(queue: QueueRef, receipt: Receipt | str) -> Plan[Message]:
    """Read the message of a receipt again, to settle it elsewhere. Raises `StaleReceiptError`. Three calls."""
    if isinstance(receipt, str):
        receipt = Receipt.parse(receipt)
    queue = queue.shard(receipt.shard)
    lease = queue.keys.lease(receipt.lease_id)
    flat: list[bytes] = yield raw("HGETALL", lease, decode=list)
    item = dict(held_items(flat)).get(receipt.index.encode())
    words = ("ZSCORE", queue.keys.unacked, receipt.lease_id)
    score: bytes | None = yield raw(*words)
    message = None
    if item is not None and score is not None:
        _, visibility_ms = yield from _time_and_visibility(queue)
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
                # It can be settled unread.
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
    leases: NewLeases,
) -> Plan[None]:
    """Claim up to `count` messages of one shard; adds them to `messages` lease by lease, also if a later one fails."""
    most = len(messages) + count
    now_ms, queue_ms = yield from _time_and_visibility(queue)
    held = yield from _leases(queue, 0, newest=False, visibility_ms=queue_ms)
    idle = sorted(
        (lease for lease in held if now_ms - lease.delivered_ms >= elapsed_ms),
        key=lambda lease: lease.delivered_ms,
    )
    while idle and len(messages) < most:
        some = idle[:MAX_CANDIDATES]
        lease_id = queue.ids.lease_id(own_ms)
        leases.enter(queue, lease_id)
        try:
            claimed: Claimed = yield commands.claim(
                queue.keys,
                lease_id,
                [(lease.id, lease.deadline_ms) for lease in some],
                most - len(messages),
                visibility_ms=own_ms,
            )
        except QworkerError as error:
            leases.failed(queue, lease_id, error)
            raise
        if not claimed.batch.items:
            leases.not_created(queue, claimed.batch)
        messages += yield from delivered(queue, claimed.batch, leases)
        if not claimed.batch.items and not claimed.ended:
            idle = idle[MAX_CANDIDATES:]


def _pending_in(
    queue: QueueRef, count: int, elapsed_ms: int, *, newest: bool
) -> Plan[list[Pending]]:
    """List the unacked messages of one shard."""
    now_ms, visibility_ms = yield from _time_and_visibility(queue)
    messages: list[Pending] = []
    first = 0
    while len(messages) < count:
        leases = yield from _leases(queue, first, newest=newest, visibility_ms=visibility_ms)
        if not leases:
            break
        first += _PAGE
        for lease in leases:
            if now_ms - lease.delivered_ms < elapsed_ms:
                continue
            stored = yield from peek.lease(queue, lease.id, lease.deadline_ms)
            ordered = stored[::-1] if newest else stored
            messages += [_pending(message, lease, now_ms) for message in ordered]
            if len(messages) >= count:
                break
    return messages


def _time_and_visibility(queue: QueueRef) -> Plan[tuple[int, int]]:
    """Read the server's time and the queue's visibility, in ms."""
    inspection: inspect.Inspection = yield inspect.inspect(queue.keys)
    visibility_ms = whole(inspection.meta.get("visibility_ms"))
    return (
        inspection.now_ms,
        QueueAttributes().visibility_ms if visibility_ms is None else visibility_ms,
    )


def _leases(queue: QueueRef, first: int, *, newest: bool, visibility_ms: int) -> Plan[list[_Lease]]:
    verb = "ZREVRANGE" if newest else "ZRANGE"
    words = (verb, queue.keys.unacked, first, first + _PAGE - 1, "WITHSCORES")
    flat: list[Any] = yield raw(*words, decode=list)
    leases = []
    for name, deadline_ms in peek.scored(flat):
        lease_id = name.decode("utf-8", "replace")
        own_ms = visibility_of(lease_id)
        lease_ms = visibility_ms if own_ms is None else own_ms
        leases.append(_Lease(lease_id, deadline_ms, deadline_ms - lease_ms))
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
