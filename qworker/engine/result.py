"""The commands that read results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qworker.engine.command import Command, PerQueue
from qworker.engine.raw import raw
from qworker.wire.keys import QueueKeys

__all__ = ["read_results"]


def read_results(shards: Sequence[QueueKeys], message_id: str) -> Command[list[bytes | None]]:
    """Read what shards of a queue keep of a message: one of them at most, unless it was moved; None from the others."""
    names = [keys.result(message_id) for keys in shards]

    def per_queue() -> PerQueue[Any]:
        return PerQueue([raw("GET", name) for name in names], list)

    return raw("MGET", *names, decode=list, per_queue=per_queue if len(names) > 1 else None)
