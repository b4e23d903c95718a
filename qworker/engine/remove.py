"""Commands that empty and delete queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["Purged", "purge", "remove"]


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
