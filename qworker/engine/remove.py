"""Commands that empty and delete queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["Awaited", "Purged", "awaited", "purge", "remove", "revoke"]


class Purged(msgspec.Struct, frozen=True):
    """How many messages were deleted; `more`: there may be some left."""

    messages: int
    more: bool


def purge(
    keys: QueueKeys, state: str, limit: int = 1000, *, now_ms: int | None = None
) -> Command[Purged]:
    """Delete up to `limit` messages of a state (ready, delayed, dead), or up to 1 MiB of them."""

    def decode(reply: Any) -> Purged:
        _, _, messages, more, _ = accepted(reply, keys.queue)
        return Purged(messages, more == 1)

    return Command(load_script("purge"), standard_keys(keys), (given(now_ms), state, limit), decode)


def remove(keys: QueueKeys, leases: Sequence[bytes]) -> Command[int]:
    """Delete a queue, or a shard, with these leases; returns how many other leases there are.

    Call it again with those until there are none: only then it deletes counters and attributes.
    """
    names = standard_keys(keys, *(lease.decode("utf-8", "replace") for lease in leases))
    others = tuple(name for name in keys.all() if name not in names)

    def decode(reply: Any) -> int:
        left: int = accepted(reply, keys.queue)[1]
        return left

    return Command(load_script("remove"), (*names, *others), (len(others), *leases), decode)


def revoke(keys: QueueKeys, leases: Sequence[bytes]) -> Command[int]:
    """Delete the messages of up to 16 leases, and end waits for their results; returns how many were deleted.

    A call ends after 1 MiB; the leases behind that are left as they are.
    """
    names = standard_keys(keys, *(lease.decode("utf-8", "replace") for lease in leases))

    def decode(reply: Any) -> int:
        messages: int = accepted(reply, keys.queue)[2]
        return messages

    return Command(load_script("revoke"), names, ("", *leases), decode)


class Awaited(msgspec.Struct, frozen=True):
    """How many messages a queue has, and whether others may wait for their ends.

    `some`: steps of chains or members of groups of calls came through outboxes. `dead`: some of those died.
    """

    stored: int
    some: bool
    dead: bool


def awaited(keys: QueueKeys) -> Command[Awaited]:
    """Count the messages of a queue whose ends others may wait for."""

    def decode(found: Any) -> Awaited:
        stored, some, dead = found
        return Awaited(int(stored or 0), some is not None, dead is not None)

    return raw("HMGET", keys.stats, "stored", "awaited", "dead_of_groups", decode=decode)
