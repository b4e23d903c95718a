"""Doing and reading what tests of several systems need."""

from __future__ import annotations

from typing import Any

from qworker.engine.reap import reap
from tests.conformance.conftest import Place

HOUR_MS = 3_600_000


def listed(place: Place, items: Any) -> list[Any]:
    """Read an iterator to its end, whichever kind it is."""
    if not hasattr(items, "__aiter__"):
        return list(items)

    async def read() -> list[Any]:
        return [item async for item in items]

    return place.finish(read())


def reaped(place: Place, name: str = "emails") -> Any:
    """Let every lease of a queue run out, and take back what was in it, as a reaper does."""
    keys = place.keys(name)
    leases = [item.decode() for item in place.ask("ZRANGE", keys.unacked, 0, -1)]
    for lease in leases:
        place.ask("ZADD", keys.unacked, place.now_ms() - 1, lease)
    place.ask("HDEL", keys.stats, "reaped_ms")
    return place.sync_client.execute(reap(keys, leases, 1000))


def ids(messages: Any) -> list[str]:
    """The ids of messages."""
    return [message.id for message in messages]


def bare(queue: Any) -> Any:
    """The queue behind the one whose calls are run to their end."""
    return getattr(queue, "_target", queue)
