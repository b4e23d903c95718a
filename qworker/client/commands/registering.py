"""Commands on the registry of queues."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.shards import WHOLE, Shards

__all__ = ["register", "registered"]


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
