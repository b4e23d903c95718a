"""Wait at the doorbells of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.engine.command import Command, PerQueue
from qworker.engine.raw import raw
from qworker.wire.keys import QueueKeys

__all__ = ["listen", "listen_at", "ring", "ring_at"]

#: The shortest wait: to Redis, 0 means forever.
_SHORTEST_S: Final = 0.01


def listen(queues: Sequence[QueueKeys], block_s: float) -> Command[bytes]:
    """Wait up to `block_s` seconds for a token of any of these queues; returns the doorbell that rang, or b''.

    In a Cluster one wait cannot cover several slots (CROSSSLOT): it returns at once.
    """
    return listen_at([keys.wake for keys in queues], block_s)


def listen_at(bells: Sequence[str], block_s: float) -> Command[bytes]:
    """Wait as `listen` does, at doorbells by their keys."""

    def decode(reply: Any) -> bytes:
        return reply[0] if reply else b""

    def per_queue() -> PerQueue[bytes]:
        return PerQueue((), lambda parts: b"")

    block_s = max(_SHORTEST_S, block_s)
    words = ("BLPOP", *bells, f"{block_s:.3f}")
    return raw(
        *words, decode=decode, per_queue=per_queue if len(bells) > 1 else None, blocks_s=block_s
    )


def ring(keys: QueueKeys) -> Command[int]:
    """Give a token back, for another consumer."""
    return ring_at(keys.wake)


def ring_at(bell: str) -> Command[int]:
    """Give a token back to a doorbell by its key."""
    return raw("RPUSH", bell, 1, decode=int)
