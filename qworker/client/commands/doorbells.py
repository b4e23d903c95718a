"""Waiting at the doorbells of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.client.commands.command import Apart, Command
from qworker.wire.keys import QueueKeys

__all__ = ["listen", "ring"]

#: The shortest wait: Redis takes 0 as "for ever".
_SHORTEST_S: Final = 0.01


def listen(queues: Sequence[QueueKeys], block_s: float) -> Command[bytes]:
    """Wait up to `block_s` seconds for a token of any of some queues; returns the doorbell that rang, or b''.

    In a Cluster, one wait cannot be for queues of several slots (CROSSSLOT): there it returns at once.
    """

    def decode(reply: Any) -> bytes:
        return reply[0] if reply else b""

    def apart() -> Apart[bytes]:
        return Apart((), lambda parts: b"")

    words = ("BLPOP", *(keys.wake for keys in queues), f"{max(_SHORTEST_S, block_s):.3f}")
    return Command(None, (), words, decode, apart=apart if len(queues) > 1 else None)


def ring(keys: QueueKeys) -> Command[int]:
    """Give a token back, for another consumer."""
    return Command(None, (), ("RPUSH", keys.wake, 1), int)
