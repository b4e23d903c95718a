"""Cancel the messages of a queue whose ids begin in one of some ways: hundreds in a trip, each read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qworker.client.cancel import tombstone
from qworker.client.inspect import peek
from qworker.client.inspect.find import WaitingMessage, call_pages, id_of
from qworker.client.inspect.walk import ListWalk, SortedSetWalk
from qworker.client.per_shard import of_one_key
from qworker.client.plan import Plan, all_together, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.engine import message as commands
from qworker.engine.command import Together
from qworker.engine.message import spot
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.numbers import score_ms

__all__ = ["cancel_messages"]

_PAGE: Final = 500
#: Leases that are read in one trip, each of up to 1 MiB, and tombstones that are written in one.
_LEASES: Final = 16
_TOMBSTONES: Final = 500


def cancel_messages(
    shard: QueueRef, prefixes: tuple[str, ...], cancelled: set[str], running: set[str]
) -> Plan[None]:
    """Delete messages of a shard that wait, and ask for the end of those that run; adds their ids to the sets.

    A key of another type is passed over. O(n) of the shard.
    """
    keys = shard.keys
    starts = tuple(prefix.encode() for prefix in prefixes)
    lists = [*enumerate(keys.ready), (None, keys.suspect)]
    sizes = yield Together(
        [
            *(raw("LLEN", key, decode=int) for _, key in lists),
            raw("ZCARD", keys.delayed, decode=int),
            raw("ZCARD", keys.unacked, decode=int),
        ]
    )
    *lengths, delayed, leases = (_size(size) for size in sizes)
    for (level, key), length in zip(lists, lengths, strict=True):
        if length:
            yield from _delete_in_list(shard, level, ListWalk(key, _PAGE), starts, cancelled)
    if delayed:
        hits: list[WaitingMessage] = []
        walk = SortedSetWalk(keys.delayed, _PAGE)
        while not walk.ended:
            page = yield from walk.page()
            hits += [
                WaitingMessage(found.decode(), item, due_ms=score_ms(score))
                for item, score in page
                if (found := id_of(item)).startswith(starts)
            ]
        for first in range(0, len(hits), _PAGE):
            cancelled.update((yield from _delete(shard, hits[first : first + _PAGE])))
    if leases:
        yield from _stop(shard, prefixes, running)


def _size(reply: int | QworkerError) -> int:
    if isinstance(reply, QworkerError):
        if not of_one_key(reply):
            raise reply
        return 0
    return reply


def _delete_in_list(
    shard: QueueRef,
    level: int | None,
    walk: ListWalk,
    starts: tuple[bytes, ...],
    cancelled: set[str],
) -> Plan[None]:
    while not walk.ended:
        behind = walk.behind
        items = yield from walk.page()
        hits: list[WaitingMessage] = []
        for at, item in enumerate(items):
            if (found := id_of(item)).startswith(starts):
                # The nearest to the tail first: each is where it will be once those before it are gone.
                hits.append(
                    WaitingMessage(found.decode(), item, spot(level, behind + at - len(hits)))
                )
        deleted = yield from _delete(shard, hits)
        walk.took(len(deleted))
        cancelled.update(deleted)


def _delete(shard: QueueRef, hits: Sequence[WaitingMessage]) -> Plan[list[str]]:
    """Delete messages in as few trips as they need; returns the ids of those deleted."""
    deleted: list[str] = []
    while hits:
        pages = [*call_pages(hits)]
        replies = yield from all_together(
            [
                commands.delete(shard.keys, [hit.item for hit in page], [hit.spot for hit in page])
                for page in pages
            ]
        )
        left: list[WaitingMessage] = []
        for page, reply in zip(pages, replies, strict=True):
            deleted += [hit.id for hit, gone in zip(page, reply, strict=False) if gone]
            # A call looks at a limited number of entries.
            left += page[len(reply) :]
        hits = left
    return deleted


def _stop(shard: QueueRef, prefixes: tuple[str, ...], running: set[str]) -> Plan[None]:
    walk = SortedSetWalk(shard.keys.unacked, _PAGE)
    fresh: dict[str, None] = {}
    while not walk.ended:
        try:
            page = yield from walk.page()
        except QworkerError as error:
            if not of_one_key(error):
                raise
            return
        plans = (
            peek.lease(shard, lease_id.decode("utf-8", "replace"), score_ms(deadline))
            for lease_id, deadline in page
        )
        for messages in (yield from side_by_side(plans, _LEASES)):
            if not isinstance(messages, QworkerError):
                fresh |= {
                    message.id: None
                    for message in messages
                    if message.id.startswith(prefixes) and message.id not in running
                }
            elif not of_one_key(messages):
                raise messages
    ids = [*fresh]
    for first in range(0, len(ids), _TOMBSTONES):
        some = ids[first : first + _TOMBSTONES]
        yield from all_together([tombstone(shard, each) for each in some])
        running.update(some)
