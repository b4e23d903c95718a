"""Search for a message whose end is waited for, and say when to."""

from __future__ import annotations

import time
from typing import Final

from qworker.client.calls import call_group
from qworker.client.chain_search import ChainEnd
from qworker.client.inspect.peek import show
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.inspect import Inspection, inspect
from qworker.errors import AccessDeniedError

__all__ = ["Searches", "is_gone"]

_MOST_S: Final = 300.0
#: Messages of a queue (or shard) up to which a message is searched for.
_SEARCHED: Final = 1000
#: A message that moves may be missed by a search, so it is repeated.
_WALKS: Final = 5


class Searches:
    """Searches of one wait: rare, since each reads a queue. The first after `first_s`, the others up to 5 min apart."""

    def __init__(self, first_s: float) -> None:
        self._pause_s = first_s
        self._at = time.monotonic() + first_s

    def due(self) -> bool:
        """Whether to search now; the next search is after twice the pause."""
        if time.monotonic() < self._at:
            return False
        self._pause_s = min(2 * self._pause_s, _MOST_S)
        self._at = time.monotonic() + self._pause_s
        return True


def is_gone(queue: QueueRef, message_id: str) -> Plan[bool]:
    """Say whether a message is certainly not in the queue, nor will come.

    False for a queue that is too long to search, over 1,000, or in which something moved during each of five searches;
    for a later step of a chain, whose first one may be in any queue; and for the callback of a group of calls that has
    not ended.
    """
    if ChainEnd.of(queue, message_id) is not None:
        return False
    try:
        before = yield from _counters(queue)
        for _ in range(_WALKS):
            if before is None or (yield from _is_there(queue, message_id)):
                return False
            after = yield from _counters(queue)
            if after == before:
                return True
            before = after
    except AccessDeniedError:
        pass  # the role `results` may not look into queues
    return False


def _counters(queue: QueueRef) -> Plan[list[dict[str, int]] | None]:
    """Read the counters of a queue, which change with each move of a message; None if it is too long to search."""
    counters = []
    for shard in (yield from queue.every_shard()):
        seen: Inspection = yield inspect(shard.keys)
        if seen.ready + seen.delayed + seen.dead + seen.unacked > _SEARCHED:
            return None
        counters.append(seen.stats)
    return counters


def _is_there(queue: QueueRef, message_id: str) -> Plan[bool]:
    group = yield from call_group(queue, message_id)
    if group is not None and group.is_open:
        return True
    for shard in (yield from queue.every_shard()):
        if (yield from show(shard, message_id)) is not None:
            return True
    return False
