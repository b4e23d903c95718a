"""Search for a message whose end is waited for, and say when to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from qworker.client.calls import call_group
from qworker.client.chain_search import (
    ChainEnd,
    ShardContents,
    contents_of,
    has_letter,
    locate_step,
    shards_of,
)
from qworker.client.inspect.peek import show
from qworker.client.inspect.stats import inspections
from qworker.client.plan import Plan, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.errors import AccessDeniedError

__all__ = ["Searches", "is_gone"]

_MAX_S: Final = 300.0
#: Messages of a queue (or shard) up to which a message is searched for.
_SEARCHED: Final = 1000
#: The same of a brief search, which many waits make.
_BRIEFLY: Final = 100
#: A message that moves may be missed by a search, so it is repeated.
_WALKS: Final = 5
#: Queues and shards in which the steps of a chain are searched for, and how many at a time: a reply may have 1 MiB.
_MAX_SHARDS: Final = 250
_SIDE_BY_SIDE: Final = 16


class Searches:
    """Searches of a wait, or of several one after the other: rare, since each reads a queue.

    The first one after `first_s`, the others of a wait up to 5 min apart.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = self._pause_s = first_s
        self._at = time.monotonic() + first_s

    def begin(self) -> None:
        """Another wait begins: what it waits for is searched for no later than if it were alone."""
        self._pause_s = self._first_s
        self._at = min(self._at, time.monotonic() + self._first_s)

    def found_gone(self) -> None:
        """Say that a message is gone: the next one may be, too, and is searched for at once."""
        self._at = time.monotonic()

    def due(self) -> bool:
        """Whether to search now; the next search is after twice the pause."""
        if time.monotonic() < self._at:
            return False
        self._pause_s = min(2 * self._pause_s, _MAX_S)
        self._at = time.monotonic() + self._pause_s
        return True


def is_gone(
    queue: QueueRef, message_id: str, queues: Sequence[str] = (), *, brief: bool = False
) -> Plan[bool]:
    """Say whether a message is certainly not in the queue, nor will come.

    False for a queue that is too long to search, over 1,000, or in which something moved during each of five searches,
    and for the callback of a group of calls that has not ended. Of a later step of a chain the steps before it are
    searched for in `queues`, or without them in all queues of the namespace, up to 250 with their shards. `brief`:
    search once, up to 100 messages, and for no chain.
    """
    end = ChainEnd.of(queue, message_id)
    most, walks = (_BRIEFLY, 1) if brief else (_SEARCHED, _WALKS)
    try:
        if end is not None and (brief or not (yield from _is_over(end, queues))):
            return False
        before = yield from _counters(queue, most)
        for _ in range(walks):
            if before is None or (yield from _is_there(queue, message_id)):
                return False
            after = yield from _counters(queue, most)
            if after == before:
                return True
            before = after
    except AccessDeniedError:
        pass  # the role `results` may not look into queues
    return False


def _is_over(end: ChainEnd, queues: Sequence[str]) -> Plan[bool]:
    """Say whether no step before the end of a chain is anywhere, also not as a dead letter, which can be redriven."""
    shards = yield from shards_of(end, queues)
    if len(shards) > _MAX_SHARDS:
        return False
    before: dict[str, ShardContents | None] | None = None
    for _ in range(_WALKS):
        held = yield from contents_of(shards)
        states = [
            state for state in held.values() if state is not None and state.number <= _SEARCHED
        ]
        if len(states) < len(shards):
            return False
        if held == before:
            return True
        walks = (_has_step(shards[name], held[name], end) for name in shards)
        if any(found is not False for found in (yield from side_by_side(walks, _SIDE_BY_SIDE))):
            return False
        before = held
    return False


def _has_step(shard: QueueRef, held: ShardContents | None, end: ChainEnd) -> Plan[bool]:
    if held is None or (held.holds and (yield from locate_step(shard, held, end)) is not None):
        return True
    return bool(held.dead) and (yield from has_letter(shard, end))


def _counters(queue: QueueRef, most: int) -> Plan[list[dict[str, int]] | None]:
    """Read the counters of a queue, which change with each move of a message; None if a shard has more than `most`."""
    shards = yield from inspections(queue)
    if any(seen.ready + seen.delayed + seen.dead + seen.unacked > most for seen in shards):
        return None
    return [seen.stats for seen in shards]


def _is_there(queue: QueueRef, message_id: str) -> Plan[bool]:
    # Without a group of this id, the shards have just been read again.
    group = yield from call_group(queue, message_id)
    if group is not None and group.is_open:
        return True
    for shard in (yield from queue.every_shard()):
        if (yield from show(shard, message_id)) is not None:
            return True
    return False
