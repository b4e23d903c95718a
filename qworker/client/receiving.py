"""Receiving messages from one queue, or from several, left to right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

from qworker.client.commands.command import Pause, Soon
from qworker.client.commands.doorbells import listen
from qworker.client.commands.receiving import Batch
from qworker.client.delivering import Deliveries, delivered
from qworker.client.limits import check_count, check_visibility_ms
from qworker.client.message import Message
from qworker.client.places import PATIENCE_S, Asked, Pass, in_turn, one_pass, patience_s
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import HasRef, QueueRef
from qworker.durations import Duration, duration_ms
from qworker.errors import QworkerError, RefusedError, RetryRule, ServerError

__all__ = ["pop", "receive"]

_log = structlog.get_logger(__name__)

#: The longest single wait at a doorbell.
_BLOCK_S: Final = 2.0
#: Pauses between looks where there is no waiting at the doorbells, see `listen`.
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
#: Passes that a call makes which does not wait, while all that it meets has expired.
_PASSES: Final = 20
#: Seconds that an ack of `pop` gets where other queues gave messages too.
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
    `then`: queues to go on with, in this order, while there are fewer than `count`; each makes a lease of its own,
    and its messages are settled by it. `reap`: do a reaper's work on the queues first (at least one call more), for
    programs that have neither daemon nor worker.

    A message whose last delivery timed out comes alone, at every fourth receive or twice a second while there are any.
    Of several queues or shards one that cannot be received from costs the others nothing: it is logged
    (`receive_failed`) and left alone for up to 5 s. The error is raised only where all of them failed.
    """
    own_ms = check_visibility_ms(visibility)
    queues = yield from in_turn([queue, *(each.ref for each in then)])
    return (yield from _receive(queues, Asked(count, own_ms, reap), wait, pop=False))


def pop(
    queue: QueueRef,
    count: int = 1,
    *,
    wait: Duration = 0,
    then: Sequence[HasRef] = (),
    reap: bool = False,
) -> Plan[list[Message]]:
    """Receive and ack at once: at most once, a crash after this loses the messages. Options as of `receive`.

    Returns the messages whose ack counted, and no other. Those of a queue that fails between the two are given back;
    those whose ack is in doubt are not returned, as they may have been acked or not. The error is raised where nothing
    was acked.
    """
    queues = yield from in_turn([queue, *(each.ref for each in then)])
    return (yield from _receive(queues, Asked(count, None, reap), wait, pop=True))


def _receive(
    places: Sequence[QueueRef], asked: Asked, wait: Duration, *, pop: bool
) -> Plan[list[Message]]:
    check_count(asked.count)
    began = time.monotonic()
    deadline = began + duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    rung, pause_s, passes = b"", _FIRST_PAUSE_S, 0
    #: Since when no place at all has served, and since when those that failed before are to be asked again.
    failing_since: float | None = None
    anew_since: float | None = None
    while True:
        asked_at = time.monotonic()
        with Deliveries() as leases:
            found = yield from one_pass(places, asked, leases, rung=rung, anew_since=anew_since)
            messages = yield from _deliver(found, leases, pop=pop)
            if messages:
                return messages
        now = time.monotonic()
        passes, rung, anew_since = passes + 1, b"", None
        if not found.served:
            failing_since = asked_at if failing_since is None else failing_since
            give_up_s = min(place.give_up_s for place in places)
            _raise_if_lasting(found, now - failing_since >= give_up_s)
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            anew_since = time.monotonic()
            continue
        failing_since = None
        left_s = deadline - now
        if left_s <= 0:
            if found.unfinished and passes < _PASSES:
                continue
            return []
        block_s = min(_BLOCK_S, left_s, min(found.hints_ms, default=_LONGEST_WAIT_MS) / 1000)
        if block_s > 0:
            rung = yield from _wait(places, found, block_s)
            if not rung and time.monotonic() < now + min(block_s, pause_s):
                yield Pause(min(block_s, pause_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _deliver(found: Pass, leases: Deliveries, *, pop: bool) -> Plan[list[Message]]:
    """Make messages of what was received. What one place fails at costs the others nothing."""
    messages: list[Message] = []
    failed: QworkerError | None = None
    several = len(found.batches) > 1
    for place, batch in found.batches:
        plan = delivered(place, batch, leases, pop=pop)
        if several:
            plan = each_soon(plan, patience_s(place, _ACK_S if pop else PATIENCE_S))
        try:
            messages += yield from plan
        except QworkerError as error:
            failed = failed or error
            _leave(place, batch, leases, error)
    if failed is not None and not messages:
        raise failed
    return messages


def _leave(place: QueueRef, batch: Batch, leases: Deliveries, error: QworkerError) -> None:
    leases.leave(place, batch.lease_id)
    _log.warning(
        "pop_failed",
        queue=place.keys.queue,
        messages=len(batch.items),
        error=str(error),
        kind=type(error).__name__,
    )


def _raise_if_lasting(found: Pass, over: bool) -> None:
    """Raise the first error where no place served: at once if none of them will pass, else when the time is over."""
    errors = list(found.errors.values())
    if over or not any(_may_pass(error) for error in errors):
        raise errors[0]


def _may_pass(error: QworkerError) -> bool:
    if isinstance(error, RefusedError):
        return False
    return isinstance(error, ServerError) and error.retry is not RetryRule.NEVER


def _wait(places: Sequence[QueueRef], found: Pass, block_s: float) -> Plan[bytes]:
    """Wait at the doorbells of the places that serve. The doorbell is a hint; the next receive is what counts."""
    bells = [place.keys for place in places if place.keys.queue not in found.errors]
    waiting = listen(bells, block_s)
    if len(places) == 1:
        rung: bytes = yield waiting
        return rung
    try:
        rung = yield Soon(waiting, PATIENCE_S)
    except QworkerError as error:
        _log.debug("doorbells_not_heard", error=str(error))
        return b""
    return rung
