"""Emptying a queue, and removing it."""

from __future__ import annotations

from typing import Final

from qworker.client.commands import removing
from qworker.client.commands.command import Brief, Command
from qworker.client.commands.index import present, withdraw
from qworker.client.commands.sharding import divide, read_shards
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import everywhere, sum_of
from qworker.errors import (
    BrokenQueueError,
    InvalidOptionError,
    ServerError,
    concerns_the_call,
)
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS
from qworker.wire.shards import WHOLE, Shards

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
    """Delete the queue with all its messages, attributes and counters, and all shards that it ever had.

    Leases in hand become stale. What is sent or received meanwhile goes as well, or makes the queue anew. Where it
    ends halfway, call it again.
    """
    if queue.single:
        yield from _remove(queue.keys)
        yield Brief(withdraw(queue.namespace, [queue.keys.queue]))
        return
    try:
        known: Shards = yield read_shards(queue.keys)
        if known.active > 1:
            # Who is refused by a shard that is gone finds out here that it is not to be opened again.
            yield divide(queue.keys, known, 1, known.kept)
    except (ServerError, BrokenQueueError) as error:
        if not concerns_the_call(error):
            raise
        # Its meta holds another type, and goes as well.
    shards = [queue.shard_of(number) for number in range(1, MAX_SHARDS)]
    there: list[Shards | None] = yield present([shard.keys for shard in shards])
    for shard, is_there in reversed([*zip(shards, there, strict=True)]):
        if is_there is not None:
            yield from _remove(shard.keys)
    yield from _remove(queue.keys)
    queue.learn(WHOLE)
    places = Shards(1, MAX_SHARDS).names(queue.keys.name)
    yield Brief(withdraw(queue.namespace, places))


def _remove(keys: QueueKeys) -> Plan[None]:
    leases: list[bytes] = yield from _leases(keys)
    while (yield removing.remove(keys, leases)):
        leases = yield from _leases(keys)


def _leases(keys: QueueKeys) -> Plan[list[bytes]]:
    words = ("ZRANGE", keys.unacked, 0, _LEASES - 1)
    try:
        leases: list[bytes] = yield Command(None, (), words, list)
    except ServerError as error:
        if type(error) is not ServerError:
            raise
        return []  # It holds another type: no lease has a deadline.
    return leases
