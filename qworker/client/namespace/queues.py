"""The queues of a namespace, from its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qworker.client.execute.protocol import Execute
from qworker.client.plan import Plan
from qworker.engine.index import MAX_ASKED, NamesPage, present
from qworker.engine.index import names as names_page
from qworker.engine.inspect import existing as keys_existing
from qworker.errors import BrokenQueueError, InvalidNameError
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import check_namespace, check_queue, check_queue_or_shard
from qworker.wire.shards import Shards

__all__ = [
    "MAX_ABSENT",
    "existing",
    "holding",
    "is_queue",
    "is_shard_name",
    "list_queues",
    "list_shards",
    "listed",
    "named",
]

#: Entries of the index without a queue after which a tool looks for the keys of queues instead.
MAX_ABSENT: Final = 20_000
_END: Final = "0"
_ASKED_AT_ONCE: Final = 500


def list_queues(namespace: str) -> Plan[list[str]]:
    """List the queues of a namespace, sorted: those created, sent to, or found by a reaper."""
    return sorted((yield from listed(namespace)))


def listed(namespace: str, *, most_absent: int | None = None) -> Plan[dict[str, Shards]]:
    """Map the queues of the index that have keys to their shards. Five calls per 1,000 names.

    Raises `BrokenQueueError` if the index holds another type, or more entries than `most_absent` that are no queues.
    """
    queues: dict[str, Shards] = {}
    asked: set[str] = set()
    absent, cursor = 0, ""
    while cursor != _END:
        page = yield from _page(namespace, cursor or _END)
        cursor = page.cursor
        names = [name for name in page.names if name not in asked and is_queue(name)]
        asked.update(names)
        found = yield from existing(namespace, names)
        queues |= found
        absent += page.others + len(names) - len(found)
        if most_absent is not None and absent > most_absent:
            crowded = f"hash with over {most_absent:,} entries without a queue"
            raise BrokenQueueError(queues_key(namespace), crowded)
    return queues


def named(namespace: str) -> Plan[list[str]]:
    """Return all entries of the index that are names of queues, with or without keys."""
    return [name for name in (yield from _names(namespace)) if is_queue(name)]


def list_shards(namespace: str) -> Plan[list[str]]:
    """List the queues of the index that have keys, and their shards as `queue/3`; unsorted."""
    entries = [name for name in (yield from _names(namespace)) if is_shard_name(name)]
    names: set[str] = set()
    for name, shards in (yield from existing(namespace, entries)).items():
        names.update(shards.names(name) if is_queue(name) else [name])
    return [*names]


def existing(namespace: str, names: list[str]) -> Plan[dict[str, Shards]]:
    """Map those of some queues that have keys to their shards."""
    queues: dict[str, Shards] = {}
    for first in range(0, len(names), MAX_ASKED):
        page = names[first : first + MAX_ASKED]
        divisions: list[Shards | None] = yield present(
            [QueueKeys(namespace, name) for name in page]
        )
        queues |= {
            name: shards for name, shards in zip(page, divisions, strict=True) if shards is not None
        }
    return queues


def holding(
    execute: Execute, queues: Sequence[QueueKeys], part: Callable[[QueueKeys], str]
) -> list[QueueKeys]:
    """Find the queues (or shards) that have a key. One call per 500 without, some more around each that has it."""
    found: list[QueueKeys] = []
    chunks = [queues[at : at + _ASKED_AT_ONCE] for at in range(0, len(queues), _ASKED_AT_ONCE)]
    while chunks:
        chunk = chunks.pop()
        number: int = execute(keys_existing([part(keys) for keys in chunk]))
        if number == len(chunk):
            found += chunk
        elif number:
            half = len(chunk) // 2
            chunks += [chunk[:half], chunk[half:]]
    return sorted(found, key=lambda keys: keys.queue)


def is_shard_name(name: str) -> bool:
    """Say whether an entry of the index names a queue, or a shard of one."""
    try:
        check_queue_or_shard(name)
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


def _names(namespace: str) -> Plan[list[str]]:
    """Read all entries of the index."""
    entries: dict[str, None] = {}
    cursor = ""
    while cursor != _END:
        page = yield from _page(namespace, cursor or _END)
        entries.update(dict.fromkeys(page.names))
        cursor = page.cursor
    return [*entries]


def _page(namespace: str, cursor: str) -> Plan[NamesPage]:
    page: NamesPage = yield names_page(check_namespace(namespace), cursor)
    return page
