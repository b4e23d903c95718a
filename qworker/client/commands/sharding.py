"""Commands on the shards of a queue: how it is divided, which the queue itself says, and what each shard says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qworker.client.commands.command import Command, Word
from qworker.client.commands.replies import accepted
from qworker.client.options import COMMON_META
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Mark, Shards

__all__ = ["adopt", "common_meta", "divide", "mark", "read_mark", "read_shards", "retire"]

_COMMON = tuple(sorted(COMMON_META))


def read_shards(keys: QueueKeys) -> Command[Shards]:
    """Read how a queue is divided; one that says nothing of it is whole."""
    words = ("HGET", keys.meta, "shards")
    return Command(None, (), words, lambda reply: Shards.parse(reply) or WHOLE)


def read_mark(keys: QueueKeys) -> Command[Mark]:
    """Read what a shard beside the first one says of itself."""
    return Command(None, (), ("HGET", keys.meta, "shard"), Mark.parse)


def common_meta(keys: QueueKeys) -> Command[dict[str, str]]:
    """Read the attributes that all shards of a queue have in common, as stored; those that are set."""

    def decode(reply: Any) -> dict[str, str]:
        pairs = zip(_COMMON, reply, strict=True)
        return {name: value.decode("utf-8", "replace") for name, value in pairs if value}

    return Command(None, (), ("HMGET", keys.meta, *_COMMON), decode)


def divide(
    keys: QueueKeys, known: Shards, active: int, kept: int, *, now_ms: int | None = None
) -> Command[tuple[bool, Shards]]:
    """Change the shards of a queue where they are those that the caller knows.

    Returns whether that was so, and how the queue is divided then.
    """
    args = ("" if now_ms is None else now_ms, known.epoch, active, kept)
    return Command(load_script("divide"), (keys.meta,), args, _changed(keys))


def adopt(
    keys: QueueKeys, mark: Mark, kept: int, *, now_ms: int | None = None
) -> Command[tuple[bool, Shards]]:
    """Let the division of a shard's mark be that of the queue, where it is a later one; returns as `divide`."""
    args = ("" if now_ms is None else now_ms, mark.active, max(kept, mark.active), mark.epoch)
    return Command(load_script("adopt"), (keys.meta,), args, _changed(keys))


def mark(
    keys: QueueKeys,
    shards: Shards,
    attributes: Mapping[str, str] | None = None,
    *,
    now_ms: int | None = None,
) -> Command[Mark]:
    """Let a shard take what is sent, or refuse it, as a division of its queue has it; returns the mark that stands.

    That of a later division does. `attributes` are for a shard that is not there yet.
    """
    state = "open" if keys.shard < shards.active else "draining"
    words: list[Word] = ["" if now_ms is None else now_ms, state, shards.active, shards.epoch]
    for name, value in (attributes or {}).items():
        words += (name, value)

    def decode(reply: Any) -> Mark:
        return Mark.parse(accepted(reply, keys.queue)[2])

    return Command(load_script("mark"), (keys.meta,), tuple(words), decode)


def retire(keys: QueueKeys) -> Command[dict[str, int]]:
    """Take the totals of a shard that is given up, by name. Who gets them adds them to those of the queue."""

    def decode(reply: Any) -> dict[str, int]:
        _, *flat = accepted(reply, keys.queue)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {str(name, "utf-8", "replace"): int(total) for name, total in pairs}

    return Command(load_script("retire"), (keys.meta, keys.stats), (), decode)


def _changed(keys: QueueKeys) -> Any:
    def decode(reply: Sequence[Any]) -> tuple[bool, Shards]:
        _, _, changed, active, kept, epoch = accepted(reply, keys.queue)
        return changed == 1, Shards(int(active), int(kept), int(epoch))

    return decode
