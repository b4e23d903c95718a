"""Reaping without a daemon: one bounded pass over one queue, made by whoever receives from it.

For scripts and small programs that are the only ones on their queues. A daemon does the same in time; where there is
one, or a worker that carries one, nobody needs this.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from qworker.client.commands import reaping
from qworker.client.plan import Plan

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef

__all__ = ["reap_queue"]

#: How often a receiver is expected to come by; after three times that without one, leases get their grace.
_TICK_MS: Final = 1000
_LEASES: Final = 10
_PROMOTED: Final = 500
#: What is overdue after a pass has its grace, or is more than one pass moves.
_AGAIN_MS: Final = 100
#: Seconds between two rounds of pruning, which a pass makes one slice of.
_PRUNE_S: Final = 300.0


def reap_queue(queue: QueueRef) -> Plan[int | None]:
    """Promote up to 500 due messages, reap up to 10 overdue leases, trim what expired at the head.

    Every five minutes, and first at once, it begins to prune as well: idle lanes, unique keys, row ids and
    tombstones that are over, a slice with each pass until all have been seen.

    Returns in how many ms (1 or more) to come by again, None where nothing is in sight.
    One call where nothing is to be done.
    """
    keys = queue.keys
    swept: tuple[int, list[reaping.Look]] = yield reaping.sweep([keys], _TICK_MS, leases=_LEASES)
    now_ms, (look,) = swept
    times = [time for time in (look.next_due_ms, look.next_deadline_ms) if time is not None]
    if look.next_due_ms is not None and look.next_due_ms <= now_ms:
        yield reaping.promote(keys, _PROMOTED)
    if look.overdue:
        yield reaping.reap(keys, look.overdue, _TICK_MS)
    if look.expired_at_head:
        yield reaping.trim(keys, _PROMOTED)
    if time.monotonic() >= queue.prune_at_s:
        pruned: reaping.Pruned = yield reaping.prune(keys, cursors=queue.prune_from)
        queue.prune_from = reaping.START if pruned.done else pruned.cursors
        if pruned.done:
            queue.prune_at_s = time.monotonic() + _PRUNE_S
    if not times:
        return None
    left_ms = min(times) - now_ms
    return left_ms if left_ms > 0 else _AGAIN_MS
