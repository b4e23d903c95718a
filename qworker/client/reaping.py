"""Reaping without a daemon: one bounded pass over one queue, made by whoever receives from it.

For scripts and small programs that are the only ones on their queues. A daemon does the same in time; where there is
one, or a worker that carries one, nobody needs this.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

from qworker.client.commands import reaping
from qworker.client.commands.waiting import NEVER_MS
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import everywhere

__all__ = ["ReapedQueue", "reap", "reap_queue"]

#: How often a receiver is expected to come by; after three times that without one, leases get their grace.
_TICK_MS: Final = 1000
_LEASES: Final = 10
_PROMOTED: Final = 500
#: What is overdue after a pass has its grace, or is more than one pass moves.
_AGAIN_MS: Final = 100
#: Seconds between two rounds of pruning, which a pass makes one slice of.
_PRUNE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ReapedQueue:
    """What one pass over a queue has done.

    `promoted`: delayed messages that are ready now. `leases`: those that had run out, with `timed_out` messages, of
    which `dead` are dead. `ended`: messages that had expired or were cancelled. `again_ms`: in how many ms (1 or more)
    there may be more to do, None where nothing is in sight.
    """

    promoted: int = 0
    leases: int = 0
    timed_out: int = 0
    dead: int = 0
    ended: int = 0
    again_ms: int | None = None


def reap_queue(queue: QueueRef) -> Plan[ReapedQueue]:
    """Promote up to 500 due messages, reap up to 10 overdue leases, trim what expired at the head.

    Every five minutes, and first at once, it begins to prune as well: idle lanes, unique keys, row ids and
    tombstones that are over, a slice with each pass until all have been seen.

    One call where nothing is to be done.
    """
    keys = queue.keys
    swept: tuple[int, list[reaping.Look]] = yield reaping.sweep([keys], _TICK_MS, leases=_LEASES)
    now_ms, (look,) = swept
    next_due_ms = look.next_due_ms
    done = ReapedQueue()
    if look.next_due_ms is not None and look.next_due_ms <= now_ms:
        promoted: reaping.Promoted = yield reaping.promote(keys, _PROMOTED)
        done = replace(done, promoted=promoted.moved, ended=promoted.ended)
        next_due_ms = promoted.next_due_ms
        if next_due_ms is not None and next_due_ms >= NEVER_MS:
            next_due_ms = None  # it is held
    if look.overdue:
        reaped: reaping.Reaped = yield reaping.reap(keys, look.overdue, _TICK_MS)
        done = replace(done, leases=reaped.leases, timed_out=reaped.messages, dead=reaped.dead)
    if look.expired_at_head:
        trimmed: reaping.Trimmed = yield reaping.trim(keys, _PROMOTED)
        done = replace(done, ended=done.ended + trimmed.expired)
    if time.monotonic() >= queue.prune_at_s:
        pruned: reaping.Pruned = yield reaping.prune(keys, cursors=queue.prune_from)
        queue.prune_from = reaping.START if pruned.done else pruned.cursors
        if pruned.done:
            queue.prune_at_s = time.monotonic() + _PRUNE_S
    times = [time for time in (next_due_ms, look.next_deadline_ms) if time is not None]
    if not times:
        return done
    left_ms = min(times) - now_ms
    return replace(done, again_ms=left_ms if left_ms > 0 else _AGAIN_MS)


def _total(shards: list[ReapedQueue]) -> ReapedQueue:
    times = [each.again_ms for each in shards if each.again_ms is not None]
    return ReapedQueue(
        promoted=sum(each.promoted for each in shards),
        leases=sum(each.leases for each in shards),
        timed_out=sum(each.timed_out for each in shards),
        dead=sum(each.dead for each in shards),
        ended=sum(each.ended for each in shards),
        again_ms=min(times, default=None),
    )


@everywhere(_total)
def reap(queue: QueueRef) -> Plan[ReapedQueue]:
    """Do a reaper's work on the queue once, for programs that have neither daemon nor worker, and say what was done.

    Bounded per shard: 500 due messages, 10 overdue leases, 500 that expired at the head. `again_ms` says when there is
    more to do. One call where there is nothing; `receive(reap=True)` does the same on its way.
    """
    return (yield from reap_queue(queue))
