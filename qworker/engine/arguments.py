"""Keys and arguments as the scripts take them, and numbers as they reply them."""

from __future__ import annotations

from qworker.engine.command import Word
from qworker.wire.keys import QueueKeys

__all__ = ["given", "maybe", "standard_keys"]


def standard_keys(keys: QueueKeys, *lease_ids: str) -> tuple[str, ...]:
    """Declare the keys of `lua/lib/keys.lua`, followed by the leases of the call."""
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
    """Write an optional number: None is empty."""
    return "" if number is None else number


def maybe(word: bytes) -> int | None:
    """Read an optional number: empty is None."""
    return int(word) if word else None
