"""Slow upkeep: what may wait for minutes is done for a few queues per pass, so that each has its turn."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from qworker.client.commands.reaping import START, Cursors, prune, recount, trim
from qworker.daemon.registry import Execute
from qworker.daemon.tick import Tally
from qworker.wire.keys import QueueKeys

__all__ = ["ROUND_S", "Pruning"]

#: Seconds in which every queue has its turn once. Lanes are kept for 15 min without a send.
ROUND_S: Final = 300.0
#: Queues per pass at most, and slices of them.
_MOST: Final = 50
_SLICES: Final = 400
#: What pruning may take of the time between two passes; one slice of each queue in turn is made all the same.
_SHARE: Final = 0.05
_TRIMMED: Final = 100


class Pruning:
    """Forgets idle lanes, expired unique keys, row ids and tombstones, trims priority levels that a sweep does not see,
    and keeps the count of stored messages within its bounds.

    A queue whose turn it is is pruned to its end: within a pass as far as the share of the time goes, then in the next
    ones. So what is over is gone after a round, however fast it grows, as long as 40,000 fields a second are enough.
    """

    def __init__(
        self,
        execute: Execute,
        *,
        tick_ms: int = 1000,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._round_s = round_s
        self._share_s = tick_ms / 1000 * _SHARE
        self._clock = clock
        self._last = clock()
        #: Queues whose turn it is; whole ones are served, and at the start one is.
        self._due = 1.0
        self._after = ""
        self._unfinished: dict[str, Cursors] = {}
        #: When the pass has had its share, and the slices that it may still make.
        self._deadline = 0.0
        self._left = 0

    def slice(
        self, queues: Sequence[QueueKeys], tally: Tally, now_ms: int | None
    ) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty of one call or two for each queue whose turn it is; `queues` are in the order of their names."""
        now = self._clock()
        self._deadline, self._left = now + self._share_s, _SLICES
        turns = len(queues) * (now - self._last) / self._round_s
        self._due = min(float(_MOST), self._due + turns)
        self._last = now
        for queue in [*self._unfinished][:_MOST]:
            cursors = self._unfinished.pop(queue)
            at = bisect_left(queues, queue, key=_name)
            if at < len(queues) and queues[at].queue == queue:
                yield queues[at], self._prune(queues[at], cursors, tally, now_ms)
        number = min(math.floor(self._due), len(queues))
        self._due -= math.floor(self._due)
        first = bisect_right(queues, self._after, key=_name)
        for at in range(first, first + number):
            keys = queues[at % len(queues)]
            self._after = keys.queue
            yield keys, self._begin(keys, tally, now_ms)

    def _begin(self, keys: QueueKeys, tally: Tally, now_ms: int | None) -> Iterator[None]:
        yield from self._prune(keys, START, tally, now_ms)
        tally.trimmed += self._execute(trim(keys, _TRIMMED, now_ms=now_ms)).expired
        self._execute(recount(keys, now_ms=now_ms))

    def _prune(
        self, keys: QueueKeys, cursors: Cursors, tally: Tally, now_ms: int | None
    ) -> Iterator[None]:
        while True:
            done = self._execute(prune(keys, cursors=cursors, now_ms=now_ms))
            tally.pruned += done.forgotten
            self._left -= 1
            if done.done:
                return
            cursors = done.cursors
            if self._left <= 0 or self._clock() >= self._deadline:
                self._unfinished[keys.queue] = cursors
                return
            yield


def _name(keys: QueueKeys) -> str:
    return keys.queue
