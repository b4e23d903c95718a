"""One pass over the queues and shards of a receive: in turn, so that a failure of one costs the others nothing.

Batches of the first ones are returned even if later ones fail. With several, each call is given up after
half a second, and a shard that failed is left alone for a while (see `ShardState` and `AwayServers`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from qworker.client.execute.backoff import LeftAloneError
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.receive.deliver import NewLeases
from qworker.client.receive.reap import reap_queue
from qworker.engine.command import Soon
from qworker.engine.doorbells import ring
from qworker.engine.receive import Batch, Suspects, settle_receive
from qworker.errors import QworkerError
from qworker.telemetry.logger import logger

__all__ = [
    "PATIENCE_S",
    "ReceivePass",
    "ReceiveRequest",
    "one_pass",
    "patience_s",
    "shards_in_turn",
]

_log = logger(__name__)

#: Seconds that a call gets while others wait behind it: for each reply, connecting included.
PATIENCE_S: Final = 0.5


class ReceiveRequest(msgspec.Struct, frozen=True):
    """What a receive requests from each shard."""

    count: int
    visibility_ms: int | None = None
    reap: bool = False


@dataclass(slots=True)
class ReceivePass:
    """The result of a pass. `hints_ms`: in how many ms there may be more."""

    batches: list[tuple[QueueRef, Batch]] = field(default_factory=list)
    hints_ms: list[int] = field(default_factory=list)
    #: The error of each shard that could not be received from.
    errors: dict[str, QworkerError] = field(default_factory=dict)
    #: Whether any shard replied, even without messages.
    served: bool = False
    #: A shard without a batch has more to check: the messages read so far had expired.
    unfinished: bool = False

    @property
    def number(self) -> int:
        """Messages received."""
        return sum(len(batch.items) for _, batch in self.batches)


def patience_s(shard: QueueRef, most_s: float = PATIENCE_S) -> float:
    """Return the time limit of a call to one of several shards: `most_s`, or that of its client if it is shorter."""
    return min(most_s, shard.give_up_s or most_s)


def shards_in_turn(queues: Sequence[QueueRef]) -> Plan[list[QueueRef]]:
    """Return the shards of queues, left to right; each call starts with another shard of a queue."""
    shards: list[QueueRef] = []
    for queue in queues:
        own = yield from queue.every_shard()
        first = next(queue.turns) % len(own)
        shards += [*own[first:], *own[:first]]
    return shards


def one_pass(
    shards: Sequence[QueueRef],
    request: ReceiveRequest,
    leases: NewLeases,
    *,
    rung: bytes = b"",
    retry_since: float | None = None,
) -> Plan[ReceivePass]:
    """Receive from one shard after the other. Raises an error only if there is a single shard.

    `rung`: the doorbell that ended the wait before. `retry_since`: also try shards that failed before that time.
    """
    result = ReceivePass()
    single = len(shards) == 1
    lone = False
    for shard, count, suspects in _visits(shards, request.count):
        left = min(count, request.count - result.number)
        if left <= 0 or lone:
            if shard.keys.wake.encode() == rung:
                yield from _ring(shard)
            continue
        now = time.monotonic()
        resting = shard.state.resting(now) if retry_since is None and not single else None
        if resting is not None:
            result.errors[shard.keys.queue] = resting
            result.hints_ms.append(shard.state.rest_ms(now))
            continue
        # A suspect is delivered alone.
        turn = Suspects.NEVER if result.batches else suspects
        plan = _receive(shard, request, left, turn, leases, result)
        if not single:
            since = float("-inf") if retry_since is None else retry_since
            plan = each_soon(plan, patience_s(shard), since)
        try:
            lone = yield from plan
        except QworkerError as error:
            if single:
                raise
            _failed(shard, error, result)
    return result


def _visits(shards: Sequence[QueueRef], count: int) -> list[tuple[QueueRef, int, Suspects]]:
    """Return the shards in order, each with the number of messages and the turn of its suspects.

    A suspect whose turn has come is received first, in any shard: it comes alone, and messages of
    earlier shards could keep it waiting forever.
    """
    now = time.monotonic()
    visits: list[tuple[QueueRef, int, Suspects]] = []
    for shard in shards:
        first = shard.state.suspect_first(now)
        suspects = Suspects.FIRST if first else Suspects.IF_NOTHING_ELSE
        if visits and shard.state.suspect_due(now):
            visits.insert(0, (shard, 1, Suspects.FIRST))
            suspects = Suspects.IF_NOTHING_ELSE
        visits.append((shard, count, suspects))
    return visits


def _receive(
    shard: QueueRef,
    request: ReceiveRequest,
    count: int,
    suspects: Suspects,
    leases: NewLeases,
    result: ReceivePass,
) -> Plan[bool]:
    """Receive from one shard; returns whether that was a suspect, which must come alone."""
    keys = shard.keys
    if request.reap:
        reaped = yield from reap_queue(shard)
        if reaped.again_ms is not None:
            result.hints_ms.append(reaped.again_ms)
    given_back = shard.unreturned.outcomes(keys)
    lease_id = shard.ids.lease_id(request.visibility_ms)
    leases.enter(shard, lease_id)
    try:
        batch: Batch = yield settle_receive(
            keys,
            lease_id,
            count,
            outcomes=given_back,
            visibility_ms=request.visibility_ms,
            suspects=suspects,
        )
    except QworkerError as error:
        leases.failed(shard, lease_id, error)
        raise
    if given_back:
        shard.unreturned.settled(keys, given_back, batch.settled)
    shard.state.received(batch, time.monotonic())
    result.served = True
    if batch.hint_ms >= 0:
        result.hints_ms.append(batch.hint_ms)
    if batch.items:
        result.batches.append((shard, batch))
    else:
        leases.not_created(shard, batch)
        result.unfinished = result.unfinished or batch.hint_ms == 0
    return batch.alone


def _failed(shard: QueueRef, error: QworkerError, result: ReceivePass) -> None:
    now = time.monotonic()
    if isinstance(error, LeftAloneError):
        result.errors[shard.keys.queue] = error.error
        result.hints_ms.append(max(1, round(error.seconds * 1000)))
        return
    rest_s = shard.state.failed(error, now)
    result.errors[shard.keys.queue] = error
    result.hints_ms.append(shard.state.rest_ms(now))
    _log.warning(
        "receive_failed",
        queue=shard.keys.queue,
        error=str(error),
        kind=type(error).__name__,
        again_in_s=rest_s,
    )


def _ring(shard: QueueRef) -> Plan[None]:
    """Give back a token that was taken without receiving from its queue: it wakes another consumer."""
    try:
        yield Soon(ring(shard.keys), PATIENCE_S)
    except QworkerError as error:
        # A bell is a hint: without it consumers receive every two seconds.
        _log.debug("doorbell_not_rung", queue=shard.keys.queue, error=str(error))
