"""Inspect many queues at once: few trips, and a queue that cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from qworker.engine.inspect import Inspection, inspect, total
from qworker.errors import QworkerError
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.wire.shards import Shards

__all__ = ["inspect_many"]

#: Shards per trip: a reply is about 1 kB, and the server needs about 40 µs for each.
_PER_TRIP: Final = 250


def inspect_many(
    client: Client, namespace: str, queues: Mapping[str, Shards]
) -> dict[str, Inspection | QworkerError]:
    """Inspect queues as `inspect` does, each at its own instant; one that cannot be read gives its error.

    A divided queue is read as far as its shards can be, and names the others in `unread`. One trip per 250 shards and
    node.
    """
    shards = [(queue, shard) for queue, parts in queues.items() for shard in parts.names(queue)]
    found: dict[str, list[tuple[str, Inspection | QworkerError]]] = {}
    for first in range(0, len(shards), _PER_TRIP):
        trip = shards[first : first + _PER_TRIP]
        commands = [inspect(QueueKeys(namespace, shard)) for _, shard in trip]
        outcomes: list[Inspection | QworkerError] = [*client.execute_each(commands)]
        for (queue, shard), outcome in zip(trip, outcomes, strict=True):
            found.setdefault(queue, []).append((shard, outcome))
    return {queue: _whole(queue, parts) for queue, parts in found.items()}


def _whole(
    queue: str, parts: list[tuple[str, Inspection | QworkerError]]
) -> Inspection | QworkerError:
    read = [part for _, part in parts if isinstance(part, Inspection)]
    unread = tuple(f"{shard}: {part}" for shard, part in parts if isinstance(part, QworkerError))
    if not read:
        return next(part for _, part in parts if isinstance(part, QworkerError))
    if len(parts) == 1:
        return read[0]
    return replace(total(read), queue=queue, unread=unread)
