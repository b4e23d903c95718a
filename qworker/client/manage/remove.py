"""Empty queues and remove them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qworker.client.per_shard import everywhere, sum_of
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import remove as removing
from qworker.engine.command import Brief
from qworker.engine.index import present, withdraw
from qworker.engine.raw import raw
from qworker.engine.shards import divide, read_shards
from qworker.errors import (
    BrokenQueueError,
    InvalidOptionError,
    ServerError,
    concerns_the_call,
    server_refused,
)
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS
from qworker.wire.shards import WHOLE, Shards

__all__ = ["purge", "purge_shard", "remove"]

_PURGED: Final = ("ready", "delayed", "dead")
_LEASES: Final = 500


@everywhere(sum_of)
def purge(queue: QueueRef, state: str = "ready") -> Plan[int]:
    """Delete all messages of a state (ready, delayed, dead); returns how many. Not atomic."""
    if state not in _PURGED:
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} cannot be purged", f"one of {', '.join(_PURGED)}"
        )
    return (yield from purge_shard(queue, state))


def purge_shard(
    shard: QueueRef, state: str, on_progress: Callable[[int], None] | None = None
) -> Plan[int]:
    """Delete all messages of a state in one shard; `on_progress` gets how many each call deleted."""
    purged = 0
    while True:
        done: removing.Purged = yield removing.purge(shard.keys, state)
        purged += done.messages
        if on_progress is not None:
            on_progress(done.messages)
        if not done.more:
            return purged


def remove(queue: QueueRef) -> Plan[None]:
    """Delete the queue with all its messages, attributes and counters, and all shards that it ever had.

    Leases become stale. Messages sent during the call are deleted as well, or create the queue again. If it fails
    halfway, call it again.
    """
    if queue.single:
        yield from _remove(queue.keys)
        yield Brief(withdraw(queue.namespace, [queue.keys.queue]))
        return
    try:
        known: Shards = yield read_shards(queue.keys)
        if known.active > 1:
            # A sender that a removed shard refuses reads here that it must not open it again.
            yield divide(queue.keys, known, 1, known.kept)
    except (ServerError, BrokenQueueError) as error:
        if not concerns_the_call(error):
            raise
        # Its meta holds another type, and is deleted as well.
    shards = [queue.shard_of(number) for number in range(1, MAX_SHARDS)]
    there: list[Shards | None] = yield present([shard.keys for shard in shards])
    for shard, is_there in reversed([*zip(shards, there, strict=True)]):
        if is_there is not None:
            yield from _remove(shard.keys)
    yield from _remove(queue.keys)
    queue.learn(WHOLE)
    yield Brief(withdraw(queue.namespace, Shards(1, MAX_SHARDS).names(queue.keys.name)))


def _remove(keys: QueueKeys) -> Plan[None]:
    leases: list[bytes] = yield from _leases(keys)
    while (yield removing.remove(keys, leases)):
        leases = yield from _leases(keys)


def _leases(keys: QueueKeys) -> Plan[list[bytes]]:
    words = ("ZRANGE", keys.unacked, 0, _LEASES - 1)
    try:
        leases: list[bytes] = yield raw(*words, decode=list)
    except ServerError as error:
        if not server_refused(error):
            raise
        return []  # The key holds another type: there are no leases.
    return leases
