"""Commands on the index of queues, `ns:queues`: a list for tools and reapers.

It may be lost, wrong, too large or written by a stranger: what is in it counts only where keys of that queue exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands.command import Apart, Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.shards import WHOLE, Shards

__all__ = ["MAX_ASKED", "NamesPage", "announce", "names", "present", "withdraw"]

#: Queues that one call of `present` asks for.
MAX_ASKED: Final = 250


@dataclass(frozen=True, slots=True)
class NamesPage:
    """Some names of the index, unsorted; `cursor` is that of the next page, '0' after the last one.

    `others`: entries that no queue can be named by.
    """

    cursor: str
    names: tuple[str, ...]
    others: int


def announce(namespace: str, places: Iterable[str]) -> Command[int]:
    """Write queues and shards into the index, where reapers and tools find them; returns how many are new."""
    pairs = [word for place in places for word in (place, 1)]
    return Command(None, (), ("HSET", queues_key(namespace), *pairs), int)


def withdraw(namespace: str, places: Iterable[str]) -> Command[int]:
    """Take queues and shards out of the index."""
    return Command(None, (), ("HDEL", queues_key(namespace), *places), int)


def names(namespace: str, cursor: str = "0", count: int = 1000) -> Command[NamesPage]:
    """Read a page of the index, about `count` entries. Raises `BrokenQueueError` where it holds another type."""
    key = queues_key(namespace)

    def decode(reply: Any) -> NamesPage:
        _, after, others, found = accepted(reply, key)
        return NamesPage(after.decode(), tuple(name.decode() for name in found), others)

    return Command(load_script("names"), (key,), (cursor, count), decode)


def present(queues: Sequence[QueueKeys]) -> Command[list[Shards | None]]:
    """Ask of up to `MAX_ASKED` queues whether there are any keys, and how they are divided; None for one without.

    One whose node of a Cluster does not serve, or whose keys are being moved, counts as there.
    """

    def decode(reply: Any) -> list[Shards | None]:
        found = accepted(reply, "")[1]
        return [None if each == 0 else Shards.parse(each) or WHOLE for each in found]

    def apart() -> Apart[list[Shards | None]]:
        return Apart(
            [present([keys]) for keys in queues],
            lambda parts: [part[0] for part in parts],
            lambda number, error: [WHOLE],
        )

    keys = tuple(
        name
        for each in queues
        for name in (
            each.meta, each.stats, each.ready[0], each.suspect, each.delayed, each.unacked, each.dead, each.schedules,
            each.journal, each.producers, each.unique,
        )
    )  # fmt: skip
    return Command(load_script("present"), keys, (), decode, apart=apart, awaits_move=False)
