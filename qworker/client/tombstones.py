"""Forget tombstones, but not before a walk through the queue has deleted what still waits with one.

A tombstone expires (a day after the rest of a group was cancelled: then another group may take its id), but its message
may be delayed, held or stand in a paused queue for longer. It must not run then. Nothing here depends on clocks: they
say only when a walk begins, and a tombstone is forgotten by its walk alone.

Its message may also be on its way in the outbox of another queue, because this one is full or paused, or because the
node of the other one is away. No walk of this queue finds it there, so outboxes are read as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from qworker.chunks import chunks
from qworker.client.delete_where import delete_where
from qworker.client.inspect.find import id_of
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.per_shard import of_one_key
from qworker.client.plan import Plan, all_together, side_by_side
from qworker.engine.calls import NUMBERS_PER_MS
from qworker.engine.command import Word
from qworker.engine.inspect import existing
from qworker.engine.outbox import UnsentPage, unsent
from qworker.engine.raw import raw
from qworker.errors import OutOfMemoryError, QworkerError
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
#: Queues that are asked together for outboxes, outboxes that are read side by side, and entries of one page.
_ASKED: Final = 250
_OUTBOXES: Final = 16
_ENTRIES: Final = 50
#: How long a handler runs at most: a message that follows it, and was cancelled with it, is in an outbox by then. One
#: that came later has the id of another group. A tombstone is left at least twice as long before it expires.
_RUNS_MS: Final = 12 * 3_600_000


def forget_tombstones(
    keys: QueueKeys, until_ms: int, sources: Sequence[QueueKeys] = ()
) -> Plan[int]:
    """Forget tombstones of a shard that expire by `until_ms`; returns how many, at most 50,000.

    None is forgotten whose message is on its way from one of `sources`, all shards of the namespace; if one cannot be
    asked, the error of its server is raised.

    First deletes the messages that wait with one of them, as a cancel does. The tombstone of a message in a lease is
    kept until `until_ms`: the message may come back. Raises the first error. Tombstones that are left have another walk
    later: after an error, or if three walks have each found messages. O(n) of the shard.
    """
    span = ("-inf", until_ms, "BYSCORE", "LIMIT", 0, _MOST, "WITHSCORES")
    flat: list[bytes] = yield raw("ZRANGE", keys.cancelled, *span, decode=list)
    expiries = {name: int(float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)}
    # Before the walk, which finds what is stored meanwhile.
    before_ms = max(0, until_ms - _RUNS_MS)
    expiring = expiries.keys() - (yield from _on_their_way(keys, expiries, before_ms, sources))
    if not expiring:
        return 0
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


def _on_their_way(
    keys: QueueKeys, expiring: Mapping[bytes, int], before_ms: int, sources: Sequence[QueueKeys]
) -> Plan[set[bytes]]:
    """Return those of some ids whose messages are in an outbox, and came there before another one could have the id."""
    coming: set[bytes] = set()
    for first in range(0, len(sources), _ASKED):
        some = sources[first : first + _ASKED]
        if (yield existing([source.outbox(keys.queue) for source in some], all_serve=True)):
            reads = (_entries(source, keys.queue, expiring, before_ms) for source in some)
            for found in (yield from side_by_side(reads, _OUTBOXES)):
                if isinstance(found, QworkerError):
                    raise found
                coming |= found
    return coming


def _entries(
    source: QueueKeys, destination: str, expiring: Mapping[bytes, int], before_ms: int
) -> Plan[set[bytes]]:
    found: set[bytes] = set()
    start, end = "-", str(before_ms * NUMBERS_PER_MS)
    while start:
        try:
            page: UnsentPage = yield unsent(source, destination, start, end, count=_ENTRIES)
        except QworkerError as error:
            if of_one_key(error):
                break  # a key of another type holds nothing that could come
            raise
        for entry in page.entries:
            message_id = entry.message_id.encode()
            if entry.written_ms < expiring.get(message_id, 0) - _RUNS_MS:
                found.add(message_id)
        start = page.rest
    return found


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
