"""Receiving messages from one queue, or from several, left to right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

from qworker.client.commands.command import Pause
from qworker.client.commands.doorbells import listen, ring
from qworker.client.commands.receiving import Batch, settle_receive
from qworker.client.commands.settling import Outcomes, Settled, settle
from qworker.client.limits import check_count, check_visibility_ms
from qworker.client.message import Message, deliver
from qworker.client.plan import Plan
from qworker.client.queue_ref import HasRef, QueueRef
from qworker.client.reaping import reap_queue
from qworker.client.settling import note_ack, split_off
from qworker.durations import Duration, duration_ms
from qworker.errors import ProtectionError, UnknownKeyError

__all__ = ["delivered", "pop", "receive"]

_log = structlog.get_logger(__name__)

#: The longest single wait at a doorbell.
_BLOCK_S: Final = 2.0
#: Pauses between looks where there is no waiting at the doorbells, see `listen`.
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
#: When a message comes back whose key was not held.
_KEY_UNKNOWN_MS: Final = 5000


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
    `then`: queues to go on with, in this order, while there are fewer than `count`; each makes a lease of its own,
    and its messages are settled by it. `reap`: do a reaper's work on the queues first (at least one call more), for
    programs that have neither daemon nor worker.
    """
    own_ms = check_visibility_ms(visibility)
    queues = yield from _in_turn([queue, *(each.ref for each in then)])
    return (yield from _receive(queues, count, wait, own_ms, pop=False, reap=reap))


def pop(
    queue: QueueRef,
    count: int = 1,
    *,
    wait: Duration = 0,
    then: Sequence[HasRef] = (),
    reap: bool = False,
) -> Plan[list[Message]]:
    """Receive and ack at once: at most once, a crash after this loses the messages. Options as of `receive`."""
    queues = yield from _in_turn([queue, *(each.ref for each in then)])
    return (yield from _receive(queues, count, wait, None, pop=True, reap=reap))


def delivered(queue: QueueRef, batch: Batch, *, pop: bool) -> Plan[list[Message]]:
    """Make messages of a batch: foreign items are buried, and with `pop` the others are acked."""
    outcomes = Outcomes(batch.lease_id)
    messages: list[Message] = []
    for position, index in enumerate(batch.indices):
        message = deliver(queue.keys, batch, position)
        if message is None:
            outcomes.bury(index, "foreign")
            continue
        if queue.protected or "e" in message.flags:
            message = _opened(queue, message, batch.items[position], outcomes)
            if message is None:
                continue
        messages.append(message)
        if pop:
            note_ack(outcomes, message)
    if outcomes:
        settled: Settled = yield settle(queue.keys, [outcomes])
        if pop and not all(settled.counted):
            return []
    if not pop:
        for position, message in enumerate(messages):
            if message.flags:
                messages[position] = yield from _own_visibility(queue, message)
    return messages


def _in_turn(queues: Sequence[QueueRef]) -> Plan[list[QueueRef]]:
    """The shards of queues, left to right; of those of one queue each call begins with another one."""
    places: list[QueueRef] = []
    for queue in queues:
        shards = yield from queue.every_shard()
        first = next(queue.turns) % len(shards)
        places += [*shards[first:], *shards[:first]]
    return places


def _opened(queue: QueueRef, message: Message, item: bytes, outcomes: Outcomes) -> Message | None:
    """Open a protected message; None for what nobody may use (it is buried), or others may (it is given back)."""
    index = message.receipt.index
    try:
        return queue.opened(message, item)
    except UnknownKeyError as error:
        _log.warning(
            "key_unknown", queue=error.queue, message_id=error.message_id, error=error.problem
        )
        outcomes.nack(index, _KEY_UNKNOWN_MS, error=(type(error).__name__, error.problem))
    except ProtectionError as error:
        outcomes.bury(index, error.reason, (type(error).__name__, error.problem))
    return None


def _receive(
    queues: Sequence[QueueRef],
    count: int,
    wait: Duration,
    own_ms: int | None,
    *,
    pop: bool,
    reap: bool,
) -> Plan[list[Message]]:
    check_count(count)
    deadline = time.monotonic() + duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    rung, pause_s = b"", _FIRST_PAUSE_S
    while True:
        batches, hints_ms = yield from _pass(queues, count, own_ms, rung, reap=reap)
        messages = []
        # Acked only now: a queue that fails must not cost what another one gave.
        for queue, batch in batches:
            messages += yield from delivered(queue, batch, pop=pop)
        left_s = deadline - time.monotonic()
        if messages or left_s <= 0:
            return messages
        rung = b""
        # The doorbell is a hint; the next receive is what counts.
        block_s = min(_BLOCK_S, left_s, min(hints_ms, default=_LONGEST_WAIT_MS) / 1000)
        if block_s > 0:
            rung = yield listen([queue.keys for queue in queues], block_s)
            if not rung and time.monotonic() < deadline - left_s + min(block_s, pause_s):
                yield Pause(min(block_s, pause_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _pass(
    queues: Sequence[QueueRef], count: int, own_ms: int | None, rung: bytes, *, reap: bool
) -> Plan[tuple[list[tuple[QueueRef, Batch]], list[int]]]:
    """Receive from one queue after the other; returns the batches, and in how many ms there is something to come."""
    batches: list[tuple[QueueRef, Batch]] = []
    hints_ms: list[int] = []
    left = count
    for queue in queues:
        if not left:
            if queue.keys.wake.encode() == rung:
                # Its token was taken and nothing of it: somebody else is to come.
                yield ring(queue.keys)
            continue
        if reap:
            next_ms = yield from reap_queue(queue)
            if next_ms is not None:
                hints_ms.append(next_ms)
        lease_id = queue.ids.lease_id(own_ms)
        batch: Batch = yield settle_receive(queue.keys, lease_id, left, visibility_ms=own_ms)
        batches.append((queue, batch))
        left -= len(batch.items)
        if batch.hint_ms >= 0:
            hints_ms.append(batch.hint_ms)
    return batches, hints_ms


def _own_visibility(queue: QueueRef, message: Message) -> Plan[Message]:
    """Split a message off that was sent with a visibility timeout of its own."""
    own_ms = message.own_visibility_ms
    held = (yield from split_off(queue, message, own_ms)) if own_ms else None
    return message if held is None else held
