"""Forget tombstones, but not before a walk through the queue has deleted what still waits with one.

A tombstone expires (a day after the rest of a group was cancelled: then another group may take its id), but its message
may be delayed, held or stand in a paused queue for longer. It must not run then. Nothing here depends on clocks: they
say only when a walk begins, and a tombstone is forgotten by its walk alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from qworker.chunks import chunks
from qworker.client.delete_where import delete_where
from qworker.client.inspect.find import id_of
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.plan import Plan, all_together
from qworker.engine.command import Word
from qworker.engine.raw import raw
from qworker.errors import OutOfMemoryError
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items

__all__ = ["forget_tombstones"]

#: Tombstones per call of this module: a reply of about 2 MB.
_MOST: Final = 50_000
#: Walks until one has found nothing: what another walk deletes meanwhile may hide a message from this one.
_WALKS: Final = 3
#: Leases that are read in one trip, each of up to 1 MiB, and tombstones that are written in one.
_LEASES: Final = 16
_WRITTEN: Final = 1000


def forget_tombstones(keys: QueueKeys, until_ms: int) -> Plan[int]:
    """Forget tombstones of a shard that expire by `until_ms`; returns how many, at most 50,000.

    First deletes the messages that wait with one of them, as a cancel does. The tombstone of a message in a lease is
    kept until `until_ms`: the message may come back. Raises the first error. Tombstones that are left have another walk
    later: after an error, or if three walks have each found messages. O(n) of the shard.
    """
    span = ("-inf", until_ms, "BYSCORE", "LIMIT", 0, _MOST)
    expiring: set[bytes] = {*(yield raw("ZRANGE", keys.cancelled, *span, decode=list))}
    # Leases come first: a release brings a message back to those that wait, and none with a tombstone is delivered.
    leased = yield from _leased(keys, expiring)
    for _ in range(_WALKS):
        if not (yield from delete_where(keys, expiring.__contains__, set())):
            break
    else:
        return 0
    forgotten = 0
    for some in _pages(expiring - leased):
        forgotten += yield raw("ZREM", keys.cancelled, *some, decode=int)
    for some in _pages(leased):
        # A full server takes no writes that may grow it: then the next round reads these leases again.
        with suppress(OutOfMemoryError):
            words: list[Word] = [word for each in some for word in (until_ms, each)]
            yield raw("ZADD", keys.cancelled, "XX", "GT", *words, decode=int)
    return forgotten


def _leased(keys: QueueKeys, ids: set[bytes]) -> Plan[set[bytes]]:
    """Return those of some ids whose messages are in leases."""
    walk = SortedSetWalk(keys.unacked)
    leased: set[bytes] = set()
    while not walk.ended:
        names = [lease_id.decode("utf-8", "replace") for lease_id, _ in (yield from walk.page())]
        for first in range(0, len(names), _LEASES):
            reads = [
                raw("HGETALL", keys.lease(name), decode=list)
                for name in names[first : first + _LEASES]
            ]
            for flat in (yield from all_together(reads)):
                leased.update(ids.intersection(id_of(item) for _, item in held_items(flat)))
    return leased


def _pages(ids: set[bytes]) -> Iterator[list[bytes]]:
    return chunks(ids, len, most_bytes=2**20, most=_WRITTEN)
