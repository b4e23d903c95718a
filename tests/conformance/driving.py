"""Doing and reading what tests of several systems need."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.reaping import reap
from tests.conformance.conftest import Place

HOUR_MS = 3_600_000


def listed(place: Place, found: Any) -> list[Any]:
    """Read an iterator to its end, whichever kind it is."""
    if not hasattr(found, "__aiter__"):
        return list(found)

    async def read() -> list[Any]:
        return [each async for each in found]

    return place.finish(read())


def reaped(place: Place, name: str = "emails") -> Any:
    """Let every lease of a queue run out, and take back what was in it, as a reaper does."""
    keys = place.keys(name)
    leases = [each.decode() for each in place.ask("ZRANGE", keys.unacked, 0, -1)]
    for lease in leases:
        place.ask("ZADD", keys.unacked, place.now_ms() - 1, lease)
    place.ask("HDEL", keys.stats, "reaped_ms")
    return place.sync_client.execute(reap(keys, leases, 1000))


def ids(messages: Any) -> list[str]:
    """The ids of messages."""
    return [each.id for each in messages]


def bare(queue: Any) -> Any:
    """The queue behind the one whose calls are run to their end."""
    return getattr(queue, "_target", queue)
