"""Read the result of a message."""

from __future__ import annotations

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.result import read_results
from qworker.wire.names import MAX_SHARDS
from qworker.wire.result import Outcome, read_result

__all__ = ["outcome", "result_channels"]


def outcome(queue: QueueRef, message_id: str, *, merged: bool = True) -> Plan[Outcome | None]:
    """Read the result of a message; None without one: it has not ended, or the result has expired.

    `merged`: also in shards that the queue has had, and which may have left results behind. Raises `ProtectionError`
    for a value that was changed, or whose key is missing. One trip per server.
    """
    shards = yield from queue.every_shard()
    if merged and queue.shards.epoch:
        shards = [queue.shard(0), *map(queue.shard_of, range(1, MAX_SHARDS))]
    stored: list[bytes | None] = yield read_results([shard.keys for shard in shards], message_id)
    kept = [
        read_result(value, queue.keyring, queue.namespace, queue.keys.name, message_id)
        for value in stored
        if value is not None
    ]
    # A message that died in one shard and was redriven in another has succeeded.
    return max(kept, key=lambda outcome: outcome.state == "ok", default=None)


def result_channels(queue: QueueRef, message_id: str) -> list[str]:
    """Name the channels on which the end of a message may be announced, one per shard."""
    return [queue.shard(number).keys.result(message_id) for number in range(queue.shards.kept)]
