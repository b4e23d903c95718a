"""Commands on the shards of a queue: how many the queue has, and the mark of each shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given
from qworker.engine.command import Command, Word
from qworker.engine.options import COMMON_META
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.errors import ShardsChangedError
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, ReshardMark, Shards

__all__ = [
    "Retired",
    "absorb",
    "adopt",
    "ask",
    "common_meta",
    "divide",
    "have_attributes",
    "mark",
    "read_mark",
    "read_shards",
    "retire",
]

_COMMON = tuple(sorted(COMMON_META))


def read_shards(keys: QueueKeys) -> Command[Shards]:
    """Read the shards of a queue; one by default."""
    words = ("HGET", keys.meta, "shards")
    return raw(*words, decode=lambda reply: Shards.parse(reply) or WHOLE)


def have_attributes(queues: Sequence[QueueKeys]) -> Command[int]:
    """Count those of some queues that have attributes, such as their division; in a Cluster of one slot."""
    return raw("EXISTS", *(keys.meta for keys in queues), decode=int)


def read_mark(keys: QueueKeys) -> Command[ReshardMark]:
    """Read the mark of a shard other than the first."""
    return raw("HGET", keys.meta, "shard", decode=ReshardMark.parse)


def common_meta(keys: QueueKeys) -> Command[dict[str, str]]:
    """Read the attributes that all shards of a queue share, as stored; only those that are set."""

    def decode(reply: Any) -> dict[str, str]:
        pairs = zip(_COMMON, reply, strict=True)
        return {name: value.decode("utf-8", "replace") for name, value in pairs if value}

    return raw("HMGET", keys.meta, *_COMMON, decode=decode)


def ask(keys: QueueKeys, number: int) -> Command[None]:
    """Note the number of shards that an operator asks for: earlier calls for another number end."""
    return raw("HSET", keys.meta, "shards_asked", number)


def divide(
    keys: QueueKeys,
    known: Shards,
    active: int,
    kept: int,
    *,
    asked: int | None = None,
    now_ms: int | None = None,
) -> Command[tuple[bool, Shards]]:
    """Change the shards of a queue if they are still `known`. Returns whether they were, and the shards it has then.

    `asked`: raise `ShardsChangedError` unless it is still the number that an operator asked for last; None for upkeep.
    """
    args = (given(now_ms), known.epoch, active, kept, given(asked))
    changed = _changed(keys)

    def decode(reply: Any) -> tuple[bool, Shards]:
        if reply[0] == b"ASKED":
            raise ShardsChangedError(keys.queue, int(reply[1]))
        return changed(reply)

    return Command(load_script("divide"), (keys.meta,), args, decode)


def adopt(
    keys: QueueKeys, mark: ReshardMark, kept: int, *, now_ms: int | None = None
) -> Command[tuple[bool, Shards]]:
    """Give the queue the shards that a shard's mark names, if that mark is newer; returns as `divide`."""
    args = (given(now_ms), mark.active, max(kept, mark.active), mark.epoch)
    return Command(load_script("adopt"), (keys.meta,), args, _changed(keys))


def mark(
    keys: QueueKeys,
    shards: Shards,
    attributes: Mapping[str, str] | None = None,
    *,
    now_ms: int | None = None,
) -> Command[ReshardMark]:
    """Open or close a shard to sends, as `shards` has it; returns the mark it has then: a newer one stays.

    `attributes` are for a new shard.
    """
    state = "open" if keys.shard < shards.active else "draining"
    words: list[Word] = [given(now_ms), state, shards.active, shards.epoch]
    for name, value in (attributes or {}).items():
        words += (name, value)

    def decode(reply: Any) -> ReshardMark:
        return ReshardMark.parse(accepted(reply, keys.queue)[2])

    return Command(load_script("mark"), (keys.meta,), tuple(words), decode)


class Retired(msgspec.Struct, frozen=True):
    """The totals of a shard that is given up, by name; `id` identifies them until they were added to the queue's."""

    id: str
    totals: Mapping[bytes, int]


def retire(
    keys: QueueKeys, new_id: str, added: str = "", *, now_ms: int | None = None
) -> Command[Retired]:
    """Take the totals of a shard that is given up; returns the same until they are said to be `added`, by their id."""

    def decode(reply: Any) -> Retired:
        _, retired_id, *flat = accepted(reply, keys.queue)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return Retired(retired_id.decode(), {name: int(total) for name, total in pairs})

    args = (given(now_ms), new_id, added)
    return Command(load_script("retire"), (keys.meta, keys.stats), args, decode)


def absorb(keys: QueueKeys, shard: int, retired: Retired) -> Command[None]:
    """Add the totals of a shard to those of the queue, once however often and late it is called."""
    totals = [word for pair in retired.totals.items() for word in pair]

    def decode(reply: Any) -> None:
        accepted(reply, keys.queue)

    words = (shard, retired.id, *totals)
    return Command(load_script("absorb"), (keys.meta, keys.stats), words, decode)


def _changed(keys: QueueKeys) -> Callable[[Any], tuple[bool, Shards]]:
    def decode(reply: Sequence[Any]) -> tuple[bool, Shards]:
        _, _, changed, active, kept, epoch = accepted(reply, keys.queue)
        return changed == 1, Shards(int(active), int(kept), int(epoch))

    return decode
