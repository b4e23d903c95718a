"""The queues of a namespace, by its index."""

from __future__ import annotations

from typing import Final

from qworker.client.commands.index import MAX_ASKED, NamesPage, names, present
from qworker.client.plan import Plan
from qworker.errors import InvalidNameError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_namespace, check_place, check_queue
from qworker.wire.shards import Shards

__all__ = ["is_place", "is_queue", "list_queues", "listed", "named", "places", "there"]

_END: Final = "0"


def list_queues(namespace: str) -> Plan[list[str]]:
    """Name the queues of a namespace, sorted: those that were made or sent to, or that a reaper has found."""
    return sorted((yield from listed(namespace)))


def listed(namespace: str) -> Plan[dict[str, Shards]]:
    """Name the queues of the index of which there are any keys, with how each is divided. Two calls per 1,000 names.

    Raises `BrokenQueueError` where the index holds another type.
    """
    check_namespace(namespace)
    found: dict[str, Shards] = {}
    seen: set[str] = set()
    cursor = _END
    while True:
        page: NamesPage = yield names(namespace, cursor)
        fresh = [name for name in page.names if is_queue(name) and name not in seen]
        seen.update(fresh)
        found |= yield from there(namespace, fresh)
        cursor = page.cursor
        if cursor == _END:
            return found


def named(namespace: str) -> Plan[set[str]]:
    """Name all entries of the index that queues can be named by, whether or not there are any keys of them."""
    found: set[str] = set()
    cursor = _END
    while True:
        page: NamesPage = yield names(namespace, cursor)
        found.update(filter(is_queue, page.names))
        cursor = page.cursor
        if cursor == _END:
            return found


def places(namespace: str) -> Plan[list[str]]:
    """Name the queues of the index and all their shards, as `queue/3`, of which there are any keys; unsorted."""
    found: set[str] = set()
    cursor = _END
    while True:
        page: NamesPage = yield names(namespace, cursor)
        fresh = [name for name in page.names if is_place(name) and name not in found]
        for name, shards in (yield from there(namespace, fresh)).items():
            found.update(shards.names(name) if is_queue(name) else [name])
        cursor = page.cursor
        if cursor == _END:
            return [*found]


def there(namespace: str, queues: list[str]) -> Plan[dict[str, Shards]]:
    """Of some queues name those of which there are any keys, with how each is divided."""
    found: dict[str, Shards] = {}
    for first in range(0, len(queues), MAX_ASKED):
        some = queues[first : first + MAX_ASKED]
        answers: list[Shards | None] = yield present([QueueKeys(namespace, name) for name in some])
        found |= {name: each for name, each in zip(some, answers, strict=True) if each is not None}
    return found


def is_place(name: str) -> bool:
    """Say whether an entry of the index names a queue, or a shard of one."""
    try:
        check_place(name)
    except InvalidNameError:
        return False
    return True


def is_queue(name: str) -> bool:
    """Say whether an entry of the index names a whole queue."""
    try:
        check_queue(name)
    except InvalidNameError:
        return False
    return True
