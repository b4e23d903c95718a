"""Commands that end messages without their being handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["Purged", "cancel", "purge", "remove"]


@dataclass(frozen=True, slots=True)
class Purged:
    """Messages deleted; `more`: there may be some left."""

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


def cancel(
    keys: QueueKeys, message_id: str, kept_ms: int, *, now_ms: int | None = None
) -> Command[int]:
    """Leave a tombstone: whoever meets the message within `kept_ms` drops it. Returns the server's time in ms."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(
        load_script("cancel"),
        (keys.cancelled, keys.meta),
        (given(now_ms), message_id, kept_ms),
        decode,
    )


def remove(keys: QueueKeys, leases: Sequence[bytes]) -> Command[int]:
    """Delete a queue, or a shard, with these leases; returns how many other ones there are by now.

    While there are any it is to be called again with them: only then are its counters and attributes deleted as well.
    """
    names = standard_keys(keys, *(lease.decode("utf-8", "replace") for lease in leases))
    others = tuple(name for name in keys.all() if name not in names)

    def decode(reply: Any) -> int:
        left: int = accepted(reply, keys.queue)[1]
        return left

    return Command(load_script("remove"), (*names, *others), (len(others), *leases), decode)
