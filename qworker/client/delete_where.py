"""Delete the waiting messages of a shard whose ids are meant: hundreds in a trip, each read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qworker.client.inspect.find import WaitingMessage, call_pages, id_of
from qworker.client.inspect.walk import ListWalk, SortedSetWalk
from qworker.client.per_shard import of_one_key
from qworker.client.plan import Plan, all_together
from qworker.engine import message as commands
from qworker.engine.command import Together
from qworker.engine.message import NEVER_MS, location
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import score_ms

__all__ = ["delete_where"]

_PAGE: Final = 500

#: Whether the message of an id is to be deleted.
IsMeant = Callable[[bytes], bool]


def delete_where(
    keys: QueueKeys, is_meant: IsMeant, deleted: set[str], *, skip_broken: bool = False
) -> Plan[int]:
    """Delete ready, delayed and held messages; adds their ids to `deleted`. O(n) of the shard.

    Returns how many were found, of which some may have moved before they were deleted. One that moves once during the
    walk is found: delayed messages come first, because an enqueue moves them to the lists, and those held meanwhile
    last. With `skip_broken` a key of another type is passed over, otherwise its error is raised.
    """
    lists = [*enumerate(keys.ready), (None, keys.suspect)]
    sizes = yield Together(
        [
            raw("ZCARD", keys.delayed, decode=int),
            *(raw("LLEN", key, decode=int) for _, key in lists),
        ]
    )
    delayed, *lengths = (_size(size, skip_broken=skip_broken) for size in sizes)
    found = 0
    if delayed:
        found += yield from _delete_delayed(keys, "-inf", is_meant, deleted)
    for (level, key), length in zip(lists, lengths, strict=True):
        if length:
            found += yield from _delete_in_list(
                keys, level, ListWalk(key, _PAGE), is_meant, deleted
            )
    if any(lengths):
        found += yield from _delete_delayed(keys, str(NEVER_MS), is_meant, deleted)
    return found


def _size(reply: int | QworkerError, *, skip_broken: bool) -> int:
    if isinstance(reply, QworkerError):
        if not (skip_broken and of_one_key(reply)):
            raise reply
        return 0
    return reply


def _delete_delayed(keys: QueueKeys, low: str, is_meant: IsMeant, deleted: set[str]) -> Plan[int]:
    walk = SortedSetWalk(keys.delayed, _PAGE, low=low)
    number = 0
    while not walk.ended:
        hits = [
            WaitingMessage(found.decode(), item, due_ms=score_ms(score))
            for item, score in (yield from walk.page())
            if is_meant(found := id_of(item))
        ]
        number += len(hits)
        deleted.update((yield from _delete(keys, hits)))
    return number


def _delete_in_list(
    keys: QueueKeys, level: int | None, walk: ListWalk, is_meant: IsMeant, deleted: set[str]
) -> Plan[int]:
    number = 0
    while not walk.ended:
        behind = walk.behind
        items = yield from walk.page()
        hits: list[WaitingMessage] = []
        for at, item in enumerate(items):
            if is_meant(found := id_of(item)):
                # The nearest to the tail first: each is where it will be once those before it are gone.
                hits.append(
                    WaitingMessage(found.decode(), item, location(level, behind + at - len(hits)))
                )
        gone = yield from _delete(keys, hits)
        walk.took(len(gone))
        number += len(hits)
        deleted.update(gone)
    return number


def _delete(keys: QueueKeys, hits: Sequence[WaitingMessage]) -> Plan[list[str]]:
    """Delete messages in as few trips as they need; returns the ids of those deleted."""
    deleted: list[str] = []
    while hits:
        pages = [*call_pages(hits)]
        replies = yield from all_together(
            [
                commands.delete(keys, [hit.item for hit in page], [hit.location for hit in page])
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
