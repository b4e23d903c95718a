"""Read the result of a message."""

from __future__ import annotations

from typing import Final

from qworker.client.inspect.peek import show
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.result import read_results
from qworker.errors import AccessDeniedError
from qworker.wire.names import MAX_SHARDS
from qworker.wire.result import Outcome, read_result

__all__ = ["is_gone", "look", "result_channels"]

#: Messages of a queue (or shard) up to which a message is searched for after a timeout.
_SEARCHED: Final = 1000


def look(queue: QueueRef, message_id: str, *, merged: bool = True) -> Plan[Outcome | None]:
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


def is_gone(queue: QueueRef, message_id: str) -> Plan[bool]:
    """Say whether a message is certainly not in the queue. False for a queue that is too long to search, over 1,000."""
    for shard in (yield from queue.every_shard()):
        try:
            inspection: Inspection = yield inspect(shard.keys)
            waiting = inspection.ready + inspection.delayed + inspection.dead
            if waiting + inspection.unacked > _SEARCHED:
                return False
            if (yield from show(shard, message_id)) is not None:
                return False
        except AccessDeniedError:
            return False  # the role `results` may not look into queues
    return True
