"""Reap without a daemon: one bounded pass over one queue, run by its receiver.

For scripts and small programs that have their queues to themselves. A daemon, or a worker, which contains one, does the
same in time.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec
from msgspec.structs import replace

from qworker.client.namespace.queues import list_shards
from qworker.client.per_shard import everywhere
from qworker.client.plan import Plan, Trips
from qworker.client.queue_ref import QueueRef
from qworker.client.tombstones import forget_tombstones
from qworker.engine import reap as reaping
from qworker.engine.message import SEATS_FROM
from qworker.errors import AccessDeniedError
from qworker.wire.keys import QueueKeys

__all__ = ["ReapedQueue", "reap", "reap_queue"]

#: The expected interval of passes; after a gap of three intervals leases get a grace period.
_TICK_MS: Final = 1000
_LEASES: Final = 10
_PROMOTED: Final = 500
#: Leases that are overdue after a pass have a grace period, or are more than one pass reaps.
_AGAIN_MS: Final = 100
#: Seconds between two rounds of pruning; a pass prunes one slice.
_PRUNE_S: Final = 300.0


class ReapedQueue(msgspec.Struct, frozen=True):
    """The result of one pass over a queue.

    `promoted`: delayed messages that are ready now. `leases`: overdue leases, with `timed_out` messages, of which
    `dead` are dead. `ended`: messages that had expired or were cancelled. `again_ms`: in how many ms (1 or more) there
    may be more to do; None if nothing is scheduled.
    """

    promoted: int = 0
    leases: int = 0
    timed_out: int = 0
    dead: int = 0
    ended: int = 0
    again_ms: int | None = None


def reap_queue(queue: QueueRef) -> Plan[ReapedQueue]:
    """Promote up to 500 due messages, reap up to 10 overdue leases, trim expired messages at the head.

    Every five minutes, and at the first pass, it also starts to prune idle lanes, unique keys, row ids and tombstones,
    a slice per pass until all are done. Tombstones have a walk through the queue first, see `forget_tombstones`.

    One call if there is nothing to do.
    """
    keys = queue.keys
    swept: tuple[int, list[reaping.QueueSweep]] = yield reaping.sweep(
        [keys], _TICK_MS, leases=_LEASES
    )
    now_ms, (state,) = swept
    next_due_ms = state.next_due_ms
    done = ReapedQueue()
    if state.next_due_ms is not None and state.next_due_ms <= now_ms:
        promoted: reaping.Promoted = yield reaping.promote(keys, _PROMOTED)
        done = replace(done, promoted=promoted.moved, ended=promoted.ended)
        next_due_ms = promoted.next_due_ms
        if next_due_ms is not None and next_due_ms >= SEATS_FROM:
            next_due_ms = None  # held
    if state.overdue:
        reaped: reaping.Reaped = yield reaping.reap(keys, state.overdue, _TICK_MS)
        done = replace(done, leases=reaped.leases, timed_out=reaped.messages, dead=reaped.dead)
    if state.expired_at_head:
        trimmed: reaping.Trimmed = yield reaping.trim(keys, _PROMOTED)
        done = replace(done, ended=done.ended + trimmed.expired)
    if queue.walking:
        yield from _go_on(queue)
    elif time.monotonic() >= queue.prune_at_s:
        yield from _prune(queue)
    times = [time for time in (next_due_ms, state.next_deadline_ms) if time is not None]
    if not times:
        return done
    left_ms = min(times) - now_ms
    return replace(done, again_ms=left_ms if left_ms > 0 else _AGAIN_MS)


def _prune(queue: QueueRef) -> Plan[None]:
    """Prune one slice; after the last one a walk forgets tombstones, a trip per pass."""
    pruned: reaping.Pruned = yield reaping.prune(queue.keys, cursors=queue.prune_from)
    queue.prune_from = reaping.START if pruned.done else pruned.cursors
    if pruned.done:
        queue.prune_at_s = time.monotonic() + _PRUNE_S
        if pruned.until_ms is not None:
            queue.walking.append(Trips(_forget(queue, pruned.until_ms)))


def _forget(queue: QueueRef, until_ms: int) -> Plan[int]:
    try:
        names = yield from list_shards(queue.namespace)
        sources = [QueueKeys(queue.namespace, name) for name in names]
        return (yield from forget_tombstones(queue.keys, until_ms, sources))
    except AccessDeniedError:
        # A user with rights to this queue alone.
        return (yield from forget_tombstones(queue.keys, until_ms, [queue.keys]))


def _go_on(queue: QueueRef) -> Plan[None]:
    """Make one trip of a walk. If it fails, the next round begins another."""
    try:
        walk = queue.walking.pop()
    except IndexError:
        return  # another thread makes this trip
    trip = walk.next()
    if trip is not None:
        walk.answers = yield trip
        queue.walking.append(walk)


def _total(shards: list[ReapedQueue]) -> ReapedQueue:
    times = [shard.again_ms for shard in shards if shard.again_ms is not None]
    return ReapedQueue(
        promoted=sum(shard.promoted for shard in shards),
        leases=sum(shard.leases for shard in shards),
        timed_out=sum(shard.timed_out for shard in shards),
        dead=sum(shard.dead for shard in shards),
        ended=sum(shard.ended for shard in shards),
        again_ms=min(times, default=None),
    )


@everywhere(_total)
def reap(queue: QueueRef) -> Plan[ReapedQueue]:
    """Run one reaper pass over the queue, for programs that have neither daemon nor worker; returns what it did.

    Limits per shard: 500 due messages, 10 overdue leases, 500 expired messages at the head. `again_ms` says when there
    is more to do. One call if there is nothing to do; `receive(reap=True)` does the same before it receives.
    """
    return (yield from reap_queue(queue))
