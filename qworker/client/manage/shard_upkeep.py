"""Keep the shards of a queue in order: give up those that ran empty, and repair a division after a failover."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import outboxes_of
from qworker.engine import shards as commands
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.raw import server_time
from qworker.engine.shards import Retired, absorb, adopt, mark, read_mark, read_shards, retire
from qworker.wire.shards import UNMARKED, ReshardMark, Shards

__all__ = ["complete_totals", "give_up_empty", "holds_messages", "stored_shards", "tend"]

#: Age of a change of the shards whose client marked none of them: that client is gone.
_ABANDONED_MS: Final = 30_000


def tend(queue: QueueRef, numbers: Iterable[int], orphans: Set[int]) -> Plan[tuple[bool, set[int]]]:
    """Repair the division of a queue after a failover, and remove empty shards.

    `numbers`: the shards that have keys. `orphans`: those that held messages at the last check although the queue did
    not know them; that they still do shows that the queue is not just being removed. Returns whether shards were given
    up, and the orphans of this check.
    """
    known = yield from stored_shards(queue)
    others = sorted(number for number in numbers if number)
    unknown = set()
    for number in others:
        if number >= known.kept and (yield from holds_messages(queue.shard_of(number))):
            unknown.add(number)
    marked = [number for number in others if number < known.kept or number in unknown & orphans]
    known = yield from queue.healed(known, marked)
    yield from complete_totals(queue, known)
    forgotten = [number for number in unknown & orphans if number >= known.kept]
    if forgotten:
        changed, known = yield commands.divide(queue.keys, known, known.active, max(forgotten) + 1)
        if changed:
            yield from _mark_draining(queue, known)
    return (yield from give_up_empty(queue)), {n for n in unknown if n >= known.kept}


def give_up_empty(queue: QueueRef) -> Plan[bool]:
    """Give up draining shards that are empty, from the last one on; returns whether there were any.

    They keep their mark, and refuse sends. New shards, which a client is still making ready, stay.
    """
    known: Shards = yield read_shards(queue.keys)
    kept = known.kept
    while kept > known.active:
        shard = queue.shard_of(kept - 1)
        if (yield from _is_new(shard, known)):
            break
        # Its mark may be missing: the client that changed the shards is gone, or a failover has lost it.
        stored: ReshardMark = yield mark(shard.keys, known)
        if stored.open or (yield from holds_messages(shard)):
            break
        yield from _move_totals(queue, kept - 1)
        kept -= 1
    if kept == known.kept:
        return False
    changed, known = yield commands.divide(queue.keys, known, known.active, kept)
    queue.learn(known)
    if changed:
        yield from _mark_draining(queue, known)
    return bool(changed)


def _mark_draining(queue: QueueRef, known: Shards) -> Plan[None]:
    """Close the shards behind the active ones to sends; the mark shows that no client is making them ready."""
    for number in range(known.active, known.kept):
        yield mark(queue.shard_of(number).keys, known)


def _is_new(shard: QueueRef, known: Shards) -> Plan[bool]:
    """Return whether the last change of the shards has yet to mark this one, and its client may still be at work."""
    stored: ReshardMark = yield read_mark(shard.keys)
    if stored.epoch >= known.epoch:
        return False
    now_ms: int = yield server_time()
    return now_ms - known.epoch < _ABANDONED_MS


def holds_messages(shard: QueueRef) -> Plan[bool]:
    """Return whether a shard holds anything that a removal would lose. One or two calls."""
    inspection: Inspection = yield inspect(shard.keys)
    if inspection.stored or inspection.dead or inspection.leases:
        return True
    # Messages that its acks have sent to other queues are stored there first.
    return bool((yield from outboxes_of(shard.keys)))


def stored_shards(queue: QueueRef) -> Plan[Shards]:
    """Read the shards of the queue as scripts do: a date in the future counts as none."""
    _, stored = yield adopt(queue.keys, UNMARKED, 1)
    shards: Shards = stored
    return shards


def _move_totals(queue: QueueRef, number: int) -> Plan[None]:
    """Add the totals of a shard to those of the first one, so that the totals of the queue do not fall.

    Two servers change one after the other. After a crash or a lost reply the next attempt continues: the shard keeps
    the totals until they were added, and the queue adds them once.
    """
    keys = queue.shard_of(number).keys
    retired: Retired = yield retire(keys, queue.ids.lease_id())
    if retired.totals:
        yield absorb(queue.keys, number, retired)
    if retired.id:
        yield retire(keys, queue.ids.lease_id(), retired.id)


def complete_totals(queue: QueueRef, known: Shards) -> Plan[None]:
    """Add totals that a client had taken from a shard when it died, if the shard is in use again since."""
    for number in range(1, known.active):
        yield from _move_totals(queue, number)
