"""Writes of the limits of a queue: of one shard, and of all of them."""

from __future__ import annotations

from typing import Final

from qworker.client.manage.limit import share_version
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import groups as commands
from qworker.errors import InvalidOptionError
from qworker.wire.keys import QueueKeys

__all__ = ["ATTEMPTS", "changed_by_others", "write_everywhere", "write_limit"]

#: Attempts to change a limit. Each one that fails is a change by another client.
ATTEMPTS: Final = 100


def changed_by_others(name: str) -> InvalidOptionError:
    """Return the error of a change whose attempts have all failed."""
    return InvalidOptionError(
        "limit",
        f"{ascii(name)[:80]} was changed by other clients in each of {ATTEMPTS} attempts",
        "try again",
    )


def write_limit(keys: QueueKeys, name: str, words: str, before: str | None = None) -> Plan[bool]:
    """Store the limits of a name in a shard, and let groups that had to wait look at them, in short calls.

    Returns whether they were stored: not over others than `before`, nor without `before` over a share.
    """
    cursor: str | None = commands.COUNTING
    while cursor == commands.COUNTING:
        cursor = yield commands.set_limit(keys, name, words, before=before)
    if cursor is None:
        return False
    while cursor != "0":
        cursor = yield commands.set_limit(keys, "", "", cursor)
    return True


def write_everywhere(
    queue: QueueRef, name: str, words: str, before: str | None = None
) -> Plan[bool]:
    """Write limits to every shard, the first one first, and to those that the queue has got meanwhile.

    Returns whether they were stored in the first shard, as `write_limit` does. If another client changes them at the
    same time, its writes may have passed ours in any other shard: both write to the other shards what the first one
    has, until it stays the same.
    """
    if not (yield from write_limit(queue.keys, name, words, before)):
        return False
    written = [queue]
    while True:
        shards = yield from queue.every_shard(refresh=True)
        for shard in written[len(shards) :]:  # It was given up or removed meanwhile.
            yield from write_limit(shard.keys, name, "")
        for shard in shards[len(written) :]:
            yield from write_limit(shard.keys, name, words)
        are_all, written = len(shards) == len(written), shards
        if not are_all:
            continue
        if len(shards) == 1:
            return True
        has: str = (yield commands.limits(queue.keys)).get(name, "")
        if has == words or share_version(has):
            return True
        words = has
        for shard in shards[1:]:
            yield from write_limit(shard.keys, name, words)
