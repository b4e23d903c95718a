"""Doing and reading what tests of several systems need."""

from __future__ import annotations

from typing import Any

from qworker.engine.reap import reap
from tests.conformance.conftest import Caller

HOUR_MS = 3_600_000


def listed(caller: Caller, items: Any) -> list[Any]:
    """Read an iterator to its end, whichever kind it is."""
    if not hasattr(items, "__aiter__"):
        return list(items)

    async def read() -> list[Any]:
        return [item async for item in items]

    return caller.finish(read())


def reaped(caller: Caller, name: str = "emails") -> Any:
    """Let every lease of a queue run out, and take back what was in it, as a reaper does."""
    keys = caller.keys(name)
    leases = [item.decode() for item in caller.ask("ZRANGE", keys.unacked, 0, -1)]
    for lease in leases:
        caller.ask("ZADD", keys.unacked, caller.now_ms() - 1, lease)
    caller.ask("HDEL", keys.stats, "reaped_ms")
    return caller.sync_client.execute(reap(keys, leases, 1000))


def ids(messages: Any) -> list[str]:
    """The ids of messages."""
    return [message.id for message in messages]


def bare(queue: Any) -> Any:
    """The queue behind the one whose calls are run to their end."""
    return getattr(queue, "_target", queue)
