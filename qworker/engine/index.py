"""Commands on the index of queues, `ns:queues`: a list for tools and reapers.

The index may be lost, wrong, too large or written by others: an entry counts only if keys of that queue exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from qworker.engine.command import Command, PerQueue
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.shards import WHOLE, Shards

__all__ = ["MAX_ASKED", "NamesPage", "announce", "names", "present", "withdraw"]

#: Queues per call of `present`.
MAX_ASKED: Final = 250


class NamesPage(msgspec.Struct, frozen=True):
    """Some names of the index, unsorted; `cursor` is that of the next page, '0' after the last one.

    `others`: entries that cannot be names of queues.
    """

    cursor: str
    names: tuple[str, ...]
    others: int


def announce(namespace: str, names: Iterable[str]) -> Command[int]:
    """Add queues and shards to the index, where reapers and tools find them; returns how many are new."""
    pairs = [word for name in names for word in (name, 1)]
    return raw("HSET", queues_key(namespace), *pairs, decode=int)


def withdraw(namespace: str, names: Iterable[str]) -> Command[int]:
    """Remove queues and shards from the index."""
    return raw("HDEL", queues_key(namespace), *names, decode=int)


def names(namespace: str, cursor: str = "0", count: int = 1000) -> Command[NamesPage]:
    """Read a page of the index, about `count` entries. Raises `BrokenQueueError` if it holds another type."""
    key = queues_key(namespace)

    def decode(reply: Any) -> NamesPage:
        _, after, others, page = accepted(reply, key)
        return NamesPage(after.decode(), tuple(name.decode() for name in page), others)

    return Command(load_script("names"), (key,), (cursor, count), decode)


def present(queues: Sequence[QueueKeys]) -> Command[list[Shards | None]]:
    """Check which of up to `MAX_ASKED` queues have keys. Returns their shards; None for a queue without keys.

    A queue whose node of a Cluster does not serve, or whose keys are being moved, counts as present.
    """

    def decode(reply: Any) -> list[Shards | None]:
        written = accepted(reply, "")[1]
        return [None if shards == 0 else Shards.parse(shards) or WHOLE for shards in written]

    def per_queue() -> PerQueue[list[Shards | None]]:
        return PerQueue(
            [present([keys]) for keys in queues],
            lambda parts: [part[0] for part in parts],
            lambda index, error: [WHOLE],
        )

    names = tuple(
        name
        for keys in queues
        for name in (
            keys.meta, keys.stats, keys.ready[0], keys.suspect, keys.delayed, keys.unacked, keys.dead, keys.schedules,
            keys.journal, keys.producers, keys.unique,
        )
    )  # fmt: skip
    return Command(
        load_script("present"), names, (), decode, per_queue=per_queue, awaits_move=False
    )
