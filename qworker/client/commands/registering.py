"""Commands on the registry of queues."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Shards

__all__ = ["register", "registered", "retire"]


def register(registry: str, queue: str, known: Shards) -> Command[Shards]:
    """Write a queue into the registry, with its shards as the caller knows them; returns what stands there then."""

    def decode(reply: Any) -> Shards:
        _, active, kept, epoch = accepted(reply, queue)
        return Shards(int(active), int(kept), int(epoch))

    args = (queue, known.active, known.kept, known.epoch)
    return Command(load_script("register"), (registry,), args, decode)


def registered(registry: str, queue: str) -> Command[Shards]:
    """Read how a queue is divided; what the registry does not know is whole."""
    return Command(None, (), ("HGET", registry, queue), lambda reply: Shards.parse(reply) or WHOLE)


def retire(keys: QueueKeys) -> Command[dict[str, int]]:
    """Take the totals of a shard that is given up, by name. Who gets them adds them to those of the queue."""

    def decode(reply: Any) -> dict[str, int]:
        _, *flat = accepted(reply, keys.queue)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {str(name, "utf-8", "replace"): int(total) for name, total in pairs}

    return Command(load_script("retire"), (keys.meta, keys.stats), (), decode)
