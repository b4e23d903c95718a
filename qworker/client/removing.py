"""Emptying a queue, and removing it."""

from __future__ import annotations

from typing import Final

from qworker.client.commands import removing
from qworker.client.commands.command import Command
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import everywhere, sum_of
from qworker.errors import InvalidOptionError
from qworker.wire.keys import QueueKeys

__all__ = ["purge", "remove"]

_PURGED: Final = ("ready", "delayed", "dead")
_LEASES: Final = 500


@everywhere(sum_of)
def purge(queue: QueueRef, state: str = "ready") -> Plan[int]:
    """Delete all messages of a state (ready, delayed, dead); returns how many. Not atomic."""
    if state not in _PURGED:
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} cannot be purged", f"one of {', '.join(_PURGED)}"
        )
    purged = 0
    while True:
        done: removing.Purged = yield removing.purge(queue.keys, state)
        purged += done.messages
        if not done.more:
            return purged


def remove(queue: QueueRef) -> Plan[None]:
    """Delete the queue with all its messages, attributes and counters. Leases in hand become stale."""
    for shard in (yield from queue.every_shard(anew=True)):
        yield from _remove(shard.keys)
    yield from queue.forget()


def _remove(keys: QueueKeys) -> Plan[None]:
    while True:
        words = ("ZRANGE", keys.unacked, 0, _LEASES - 1)
        leases: list[bytes] = yield Command(None, (), words, list)
        if not leases:
            break
        names = [keys.lease(lease.decode("utf-8", "replace")) for lease in leases]
        yield Command(None, (), ("UNLINK", *names), int)
        yield Command(None, (), ("ZREM", keys.unacked, *leases), int)
    yield Command(None, (), ("UNLINK", *keys.all()), int)
