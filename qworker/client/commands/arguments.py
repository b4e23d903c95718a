"""Keys and arguments as the scripts take them, and numbers as they answer them."""

from __future__ import annotations

from qworker.client.commands.command import Word
from qworker.wire.keys import QueueKeys

__all__ = ["given", "maybe", "standard_keys"]


def standard_keys(keys: QueueKeys, *lease_ids: str) -> tuple[str, ...]:
    """Declare the keys of `lua/lib/keys.lua`, with the leases of the call at the end."""
    return (
        *keys.ready,
        keys.suspect,
        keys.delayed,
        keys.unacked,
        keys.wake,
        keys.dead,
        keys.meta,
        keys.stats,
        keys.unique,
        keys.cancelled,
        keys.journal,
        *(keys.lease(lease_id) for lease_id in lease_ids),
    )


def given(number: int | None) -> Word:
    """Write a number that need not be given: None is empty."""
    return "" if number is None else number


def maybe(word: bytes) -> int | None:
    """Read a number that need not be there: empty is None."""
    return int(word) if word else None
