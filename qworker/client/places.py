"""One pass over the queues and shards that a receive is for: each is asked in its turn, and one that fails costs the
others nothing.

What the first ones gave is returned whatever becomes of the later ones. Where there are several, each call is given up
after half a second, and a place that failed is left alone for a while (see `PlaceState` and `AwayServers`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from qworker.client.away import LeftAloneError
from qworker.client.commands.command import Soon
from qworker.client.commands.doorbells import ring
from qworker.client.commands.receiving import Batch, Suspects, settle_receive
from qworker.client.delivering import Deliveries
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.reaping import reap_queue
from qworker.errors import QworkerError

__all__ = ["PATIENCE_S", "Asked", "Pass", "in_turn", "one_pass", "patience_s"]

_log = structlog.get_logger(__name__)

#: Seconds that a call gets where others wait behind it: for each answer, connecting included.
PATIENCE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """What a receive asks each place for."""

    count: int
    visibility_ms: int | None = None
    reap: bool = False


@dataclass(slots=True)
class Pass:
    """What a pass has found. `hints_ms`: in how many ms there may be more."""

    batches: list[tuple[QueueRef, Batch]] = field(default_factory=list)
    hints_ms: list[int] = field(default_factory=list)
    #: The error of each place that was not served.
    errors: dict[str, QworkerError] = field(default_factory=dict)
    #: Whether any place has been received from, be it nothing.
    served: bool = False
    #: A place that gave nothing has more to look through: what it looked at had expired.
    unfinished: bool = False

    @property
    def number(self) -> int:
        """Messages received."""
        return sum(len(batch.items) for _, batch in self.batches)


def patience_s(place: QueueRef, most_s: float = PATIENCE_S) -> float:
    """How long a call to one of several places may take: `most_s`, or what its client has for any call."""
    return min(most_s, place.give_up_s or most_s)


def in_turn(queues: Sequence[QueueRef]) -> Plan[list[QueueRef]]:
    """The shards of queues, left to right; of those of one queue each call begins with another one."""
    places: list[QueueRef] = []
    for queue in queues:
        shards = yield from queue.every_shard()
        first = next(queue.turns) % len(shards)
        places += [*shards[first:], *shards[:first]]
    return places


def one_pass(
    places: Sequence[QueueRef],
    asked: Asked,
    leases: Deliveries,
    *,
    rung: bytes = b"",
    anew_since: float | None = None,
) -> Plan[Pass]:
    """Receive from one place after the other. Raises only where there is but one.

    `rung`: the doorbell that ended the wait before it. `anew_since`: ask those that failed before that time, too.
    """
    found = Pass()
    single = len(places) == 1
    lone = False
    for place, count, suspects in _visits(places, asked.count):
        left = min(count, asked.count - found.number)
        if left <= 0 or lone:
            if place.keys.wake.encode() == rung:
                yield from _ring(place)
            continue
        now = time.monotonic()
        resting = place.state.resting(now) if anew_since is None and not single else None
        if resting is not None:
            found.errors[place.keys.queue] = resting
            found.hints_ms.append(place.state.rest_ms(now))
            continue
        # A suspect is delivered alone.
        turn = Suspects.NEVER if found.batches else suspects
        plan = _receive(place, asked, left, turn, leases, found)
        if not single:
            since = float("-inf") if anew_since is None else anew_since
            plan = each_soon(plan, patience_s(place), since)
        try:
            lone = yield from plan
        except QworkerError as error:
            if single:
                raise
            _failed(place, error, found)
    return found


def _visits(places: Sequence[QueueRef], count: int) -> list[tuple[QueueRef, int, Suspects]]:
    """The places in order, each with the number of messages and the turn of its suspects.

    A suspect whose turn has come is asked for before all else, whatever the place: it comes alone, and the places in
    front of its own may never let it be asked otherwise.
    """
    now = time.monotonic()
    visits: list[tuple[QueueRef, int, Suspects]] = []
    for place in places:
        first = place.state.suspect_first(now)
        suspects = Suspects.FIRST if first else Suspects.IF_NOTHING_ELSE
        if visits and place.state.suspect_due(now):
            visits.insert(0, (place, 1, Suspects.FIRST))
            suspects = Suspects.IF_NOTHING_ELSE
        visits.append((place, count, suspects))
    return visits


def _receive(
    place: QueueRef,
    asked: Asked,
    count: int,
    suspects: Suspects,
    leases: Deliveries,
    found: Pass,
) -> Plan[bool]:
    """Receive from one place; returns whether that was a suspect, which nothing may come with."""
    keys = place.keys
    if asked.reap:
        reaped = yield from reap_queue(place)
        if reaped.again_ms is not None:
            found.hints_ms.append(reaped.again_ms)
    given_back = place.unreturned.outcomes(keys)
    lease_id = place.ids.lease_id(asked.visibility_ms)
    leases.enter(place, lease_id)
    try:
        batch: Batch = yield settle_receive(
            keys,
            lease_id,
            count,
            outcomes=given_back,
            visibility_ms=asked.visibility_ms,
            suspects=suspects,
        )
    except QworkerError as error:
        leases.failed(place, lease_id, error)
        raise
    if given_back:
        place.unreturned.settled(keys, given_back, batch.settled)
    place.state.received(batch, time.monotonic())
    found.served = True
    if batch.hint_ms >= 0:
        found.hints_ms.append(batch.hint_ms)
    if batch.items:
        found.batches.append((place, batch))
    else:
        leases.absent(lease_id)
        found.unfinished = found.unfinished or batch.hint_ms == 0
    return batch.alone


def _failed(place: QueueRef, error: QworkerError, found: Pass) -> None:
    now = time.monotonic()
    if isinstance(error, LeftAloneError):
        found.errors[place.keys.queue] = error.error
        found.hints_ms.append(max(1, round(error.seconds * 1000)))
        return
    rest_s = place.state.failed(error, now)
    found.errors[place.keys.queue] = error
    found.hints_ms.append(place.state.rest_ms(now))
    _log.warning(
        "receive_failed",
        queue=place.keys.queue,
        error=str(error),
        kind=type(error).__name__,
        again_in_s=rest_s,
    )


def _ring(place: QueueRef) -> Plan[None]:
    """Give a token back that was taken while nothing of its queue was: another consumer is to come."""
    try:
        yield Soon(ring(place.keys), PATIENCE_S)
    except QworkerError as error:
        # A bell is a hint: consumers look every two seconds without it.
        _log.debug("doorbell_not_rung", queue=place.keys.queue, error=str(error))
