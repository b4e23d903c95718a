"""Empty queues and remove them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from qworker.client.manage.shared_limit_writes import leave
from qworker.client.manage.shared_limits import declared
from qworker.client.per_shard import everywhere, sum_of
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.engine import remove as removing
from qworker.engine.calls import abandon
from qworker.engine.command import Brief
from qworker.engine.index import present, withdraw
from qworker.engine.outbox import destinations
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
from qworker.wire.states import PURGEABLE

__all__ = ["purge", "purge_shard", "remove"]

_PAGE: Final = 500
#: Groups of calls, and leases, of one call.
_GROUPS: Final = 100
_LEASES: Final = 16
#: A queue of at most this many messages is read before it is removed.
_READ: Final = 10_000


@everywhere(sum_of)
def purge(queue: QueueRef, state: str = "ready") -> Plan[int]:
    """Delete all messages of a state (ready, delayed, dead); returns how many. Not atomic."""
    if state not in PURGEABLE:
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} cannot be purged", f"one of {', '.join(PURGEABLE)}"
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

    Messages that its acks have sent to other queues are stored there, if these take them now. Leases become stale.
    The queue leaves the limits that it shares with others.
    Messages sent during the call are deleted as well, or create the queue again. If it fails halfway, call it again.
    """
    if queue.single:
        yield from _remove(queue)
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
    with suppress(ServerError, BrokenQueueError):  # Their node may be another one.
        for name, one in (yield from declared(queue.namespace)).items():
            if queue.keys.name in one.queues:
                yield from leave(queue.namespace, name, queue.keys.name)
    shards = [queue.shard_of(number) for number in range(1, MAX_SHARDS)]
    there: list[Shards | None] = yield present([shard.keys for shard in shards])
    for shard, is_there in reversed([*zip(shards, there, strict=True)]):
        if is_there is not None:
            yield from _remove(shard)
    yield from _remove(queue)
    queue.learn(WHOLE)
    yield Brief(withdraw(queue.namespace, Shards(1, MAX_SHARDS).names(queue.keys.name)))


def _remove(shard: QueueRef) -> Plan[None]:
    keys = shard.keys
    with suppress(ServerError, BrokenQueueError):
        yield from _tell_others(shard)
        # Relay what its acks have sent to other queues, if these accept it now.
        yield from relay(shard.namespace, keys)
        for name in (yield destinations(keys)):
            yield raw("UNLINK", keys.outbox(name))
    yield from _forget_runs(keys)
    leases: list[bytes] = yield from _leases(keys)
    while (yield removing.remove(keys, leases)):
        leases = yield from _leases(keys)


def _tell_others(shard: QueueRef) -> Plan[None]:
    """End the waits for messages of a queue: those of chains and groups of calls whose steps and members these are."""
    keys = shard.keys
    while groups := (yield from _members(keys.joins, _GROUPS)):
        yield abandon(keys, [group.decode("utf-8", "replace") for group in groups], "purged")
    waits: removing.Awaited = yield removing.awaited(keys)
    if waits.dead:
        yield from purge_shard(shard, "dead")
    if waits.stored > _READ and not waits.some:
        return
    runs: list[bytes] = yield raw("ZRANGE", keys.runs, 0, -1, decode=list)
    for state in ("ready", "delayed"):
        yield from purge_shard(shard, state)
    while leases := (yield from _members(keys.unacked, _LEASES)):
        yield removing.revoke(keys, leases)
    # Their ids must become free, like those of runs that are still in the index.
    for first in range(0, len(runs), _PAGE):
        names = [run.decode("utf-8", "replace") for run in runs[first : first + _PAGE]]
        yield raw("UNLINK", *map(keys.run, names), *map(keys.result, names))


def _forget_runs(keys: QueueKeys) -> Plan[None]:
    """Delete the recorded steps of runs that have not ended, and the results of dead ones: their ids are free."""
    while runs := (yield from _members(keys.runs)):
        names = [run.decode("utf-8", "replace") for run in runs]
        yield raw("UNLINK", *map(keys.run, names), *map(keys.result, names))
        yield raw("ZREM", keys.runs, *runs)


def _leases(keys: QueueKeys) -> Plan[list[bytes]]:
    return (yield from _members(keys.unacked))


def _members(key: str, count: int = _PAGE) -> Plan[list[bytes]]:
    """Read the first members of a ZSET; none if the key holds another type."""
    try:
        members: list[bytes] = yield raw("ZRANGE", key, 0, count - 1, decode=list)
    except ServerError as error:
        if not server_refused(error):
            raise
        return []
    return members
