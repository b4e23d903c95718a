"""Receive messages from one queue, or from several, left to right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from qworker.client.checks import check_count, check_visibility_ms
from qworker.client.message import Message
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import HasRef, QueueRef
from qworker.client.receive.deliver import NewLeases, delivered
from qworker.client.receive.receive_pass import (
    PATIENCE_S,
    ReceivePass,
    ReceiveRequest,
    one_pass,
    patience_s,
    shards_in_turn,
)
from qworker.durations import Duration, duration_ms
from qworker.engine.command import Pause, Soon
from qworker.engine.doorbells import listen
from qworker.engine.receive import Batch
from qworker.errors import QworkerError, RefusedError, RetryRule, ServerError
from qworker.telemetry.logger import logger

__all__ = ["pop", "receive"]

_log = logger(__name__)

#: The longest single wait at a doorbell.
_BLOCK_S: Final = 2.0
#: Pauses between receives if a wait at the doorbells returns at once, see `listen`.
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
#: Passes of a call that does not wait, while all it reads has expired.
_PASSES: Final = 20
#: Seconds that an ack of `pop` gets if other queues gave messages too.
_ACK_S: Final = 5.0


def receive(
    queue: QueueRef,
    count: int = 1,
    *,
    wait: Duration = 0,
    visibility: Duration | None = None,
    then: Sequence[HasRef] = (),
    reap: bool = False,
) -> Plan[list[Message]]:
    """Receive up to `count` (1-1,000) messages into one lease, waiting up to `wait` for the first.

    `visibility` (1s-12h) counts from the receive; None takes the queue's. Unsettled messages come back after it.
    `then`: queues to continue with, in this order, while there are fewer than `count`; each makes its own lease,
    and its messages are settled by it. `reap`: do a reaper's work on the queues first (at least one call more), for
    programs that have neither daemon nor worker.

    A message whose last delivery timed out comes alone, at every fourth receive or twice a second while there are any.
    A queue or shard that cannot be received from does not affect the others: it is logged (`receive_failed`) and left
    alone for up to 5 s. The error is raised only if all of them failed.
    """
    own_ms = check_visibility_ms(visibility)
    shards = yield from shards_in_turn([queue, *(other.ref for other in then)])
    return (yield from _receive(shards, ReceiveRequest(count, own_ms, reap), wait, pop=False))


def pop(
    queue: QueueRef,
    count: int = 1,
    *,
    wait: Duration = 0,
    then: Sequence[HasRef] = (),
    reap: bool = False,
) -> Plan[list[Message]]:
    """Receive and ack at once: at most once, a crash after this loses the messages. Options as of `receive`.

    Returns only the messages whose ack counted. Those of a queue that fails in between are given back; those whose ack
    is in doubt are not returned, since the ack may have counted. Raises the error if nothing was acked.
    """
    shards = yield from shards_in_turn([queue, *(other.ref for other in then)])
    return (yield from _receive(shards, ReceiveRequest(count, None, reap), wait, pop=True))


def _receive(
    shards: Sequence[QueueRef], request: ReceiveRequest, wait: Duration, *, pop: bool
) -> Plan[list[Message]]:
    check_count(request.count)
    began = time.monotonic()
    deadline = began + duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    rung, pause_s, passes = b"", _FIRST_PAUSE_S, 0
    #: Since when no shard has served, and since when those that failed before are retried.
    failing_since: float | None = None
    retry_since: float | None = None
    while True:
        pass_at = time.monotonic()
        with NewLeases() as leases:
            result = yield from one_pass(
                shards, request, leases, rung=rung, retry_since=retry_since
            )
            messages = yield from _deliver(result, leases, pop=pop)
            if messages:
                return messages
        now = time.monotonic()
        passes, rung, retry_since = passes + 1, b"", None
        if not result.served:
            failing_since = pass_at if failing_since is None else failing_since
            give_up_s = min(shard.give_up_s for shard in shards)
            _raise_if_lasting(result, now - failing_since >= give_up_s)
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            retry_since = time.monotonic()
            continue
        failing_since = None
        left_s = deadline - now
        if left_s <= 0:
            if result.unfinished and passes < _PASSES:
                continue
            return []
        block_s = min(_BLOCK_S, left_s, min(result.hints_ms, default=_LONGEST_WAIT_MS) / 1000)
        if block_s > 0:
            rung = yield from _wait(shards, result, block_s)
            if not rung and time.monotonic() < now + min(block_s, pause_s):
                yield Pause(min(block_s, pause_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _deliver(result: ReceivePass, leases: NewLeases, *, pop: bool) -> Plan[list[Message]]:
    """Make messages of the batches. A failure of one shard costs the others nothing."""
    messages: list[Message] = []
    failed: QworkerError | None = None
    several = len(result.batches) > 1
    for shard, batch in result.batches:
        plan = delivered(shard, batch, leases, pop=pop)
        if several:
            plan = each_soon(plan, patience_s(shard, _ACK_S if pop else PATIENCE_S))
        try:
            messages += yield from plan
        except QworkerError as error:
            failed = failed or error
            _leave(shard, batch, leases, error)
    if failed is not None and not messages:
        raise failed
    return messages


def _leave(shard: QueueRef, batch: Batch, leases: NewLeases, error: QworkerError) -> None:
    leases.leave(shard, batch.lease_id)
    _log.warning(
        "pop_failed",
        queue=shard.keys.queue,
        messages=len(batch.items),
        error=str(error),
        kind=type(error).__name__,
    )


def _raise_if_lasting(result: ReceivePass, over: bool) -> None:
    """Raise the first error if no shard served and no error may pass, or if the time is `over`."""
    errors = list(result.errors.values())
    if over or not any(_may_pass(error) for error in errors):
        raise errors[0]


def _may_pass(error: QworkerError) -> bool:
    if isinstance(error, RefusedError):
        return False
    return isinstance(error, ServerError) and error.retry is not RetryRule.NEVER


def _wait(shards: Sequence[QueueRef], result: ReceivePass, block_s: float) -> Plan[bytes]:
    """Wait at the doorbells of the shards that serve. The doorbell is a hint; the next receive counts."""
    bells = [shard.keys for shard in shards if shard.keys.queue not in result.errors]
    waiting = listen(bells, block_s)
    if len(shards) == 1:
        rung: bytes = yield waiting
        return rung
    try:
        rung = yield Soon(waiting, PATIENCE_S)
    except QworkerError as error:
        _log.debug("doorbells_not_heard", error=str(error))
        return b""
    return rung
