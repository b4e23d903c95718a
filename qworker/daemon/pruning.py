"""Slow upkeep: what may wait for minutes is done for a few queues per pass, so that each has its turn."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.client.commands.reaping import prune, recount, trim
from qworker.daemon.registry import Execute
from qworker.daemon.tick import Tally
from qworker.wire.keys import QueueKeys

__all__ = ["ROUND_S", "Pruning"]

#: Seconds in which every queue has its turn once. Lanes are kept for 15 min without a send.
ROUND_S: Final = 300.0
#: Calls per pass at most.
_MOST: Final = 50
_TRIMMED: Final = 100


class Pruning:
    """Forgets idle lanes, expired unique keys and tombstones, trims priority levels that a sweep does not see, and
    keeps the count of stored messages within its bounds.
    """

    def __init__(
        self,
        execute: Execute,
        *,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._round_s = round_s
        self._clock = clock
        self._last = clock()
        #: Queues whose turn it is; whole ones are served, and at the start one is.
        self._due = 1.0
        self._after = ""
        self._unfinished: dict[str, _Place] = {}

    def slice(
        self, queues: Sequence[QueueKeys], tally: Tally, now_ms: int | None
    ) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty of one call or two for each queue whose turn it is; `queues` are in the order of their names."""
        now = self._clock()
        turns = len(queues) * (now - self._last) / self._round_s
        self._due = min(float(_MOST), self._due + turns)
        self._last = now
        for queue in [*self._unfinished][:_MOST]:
            place = self._unfinished.pop(queue)
            at = bisect_left(queues, queue, key=_name)
            if at < len(queues) and queues[at].queue == queue:
                yield queues[at], self._prune(queues[at], place, tally, now_ms)
        number = min(math.floor(self._due), len(queues))
        self._due -= math.floor(self._due)
        first = bisect_right(queues, self._after, key=_name)
        for at in range(first, first + number):
            keys = queues[at % len(queues)]
            self._after = keys.queue
            yield keys, self._begin(keys, tally, now_ms)

    def _begin(self, keys: QueueKeys, tally: Tally, now_ms: int | None) -> Iterator[None]:
        yield from self._prune(keys, _Place(), tally, now_ms)
        tally.trimmed += self._execute(trim(keys, _TRIMMED, now_ms=now_ms)).expired
        self._execute(recount(keys, now_ms=now_ms))

    def _prune(
        self, keys: QueueKeys, place: _Place, tally: Tally, now_ms: int | None
    ) -> Iterator[None]:
        cursors, forgotten = self._execute(prune(keys, cursors=place.cursors, now_ms=now_ms))
        tally.pruned += forgotten
        # Whichever ends first begins again beside the other one, which does no harm.
        lanes, uniques = (
            ended or cursor == "0" for ended, cursor in zip(place.ended, cursors, strict=True)
        )
        if not (lanes and uniques):
            self._unfinished[keys.queue] = _Place(cursors, (lanes, uniques))
        yield


@dataclass(frozen=True, slots=True)
class _Place:
    """How far the slices of a queue are: cursors of its lanes and unique keys, and which of the two are through."""

    cursors: tuple[str, str] = ("0", "0")
    ended: tuple[bool, bool] = (False, False)


def _name(keys: QueueKeys) -> str:
    return keys.queue
