"""Slow upkeep that may wait for minutes: each pass takes a few queues, so that every queue has its turn."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from qworker.client.plan import Trips
from qworker.client.tombstones import forget_tombstones
from qworker.daemon.tick import Tick
from qworker.engine.command import Command
from qworker.engine.reap import START, Pruned, prune, recount, trim
from qworker.errors import QworkerError
from qworker.wire.keys import QueueKeys

__all__ = ["ROUND_S", "ExecuteEach", "Pruning"]

#: Seconds in which every queue has one turn. Lanes are kept for 15 min without a send.
ROUND_S: Final = 300.0
#: Queues per pass at most, and slices of them.
_MOST: Final = 50
_SLICES: Final = 400
#: Queues whose first calls go in one trip, about 1 ms of the server.
_TOGETHER: Final = 10
#: Part of a tick that pruning may take; each queue whose turn it is gets at least one slice.
_SHARE: Final = 0.05
_TRIMMED: Final = 100

#: Sends commands in one trip; returns the result or the error of each.
ExecuteEach = Callable[[Sequence[Command[Any]]], Sequence[Any]]


class Pruning:
    """Forgets idle lanes, expired unique keys, row ids and tombstones; trims priority levels that a sweep does not see;
    keeps the count of stored messages within its bounds.

    Before it forgets tombstones it walks through the queue, once an hour at most, and asks the others for outboxes: a
    message that is delayed, or on its way, for longer than its tombstone is kept would run.

    A queue whose turn has come is pruned to its end, over several passes if one has no time left for it. So one round
    removes everything that has expired, as long as 40,000 fields a second are enough.
    """

    def __init__(
        self,
        execute_each: ExecuteEach,
        *,
        tick_ms: int = 1000,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute_each = execute_each
        self._round_s = round_s
        self._share_s = tick_ms / 1000 * _SHARE
        self._clock = clock
        self._last = clock()
        #: Queues whose turn has come, with a fraction; one at the start.
        self._due = 1.0
        self._after = ""
        self._unfinished: dict[str, Iterator[int]] = {}
        #: The end of this pass's share of time, and the slices that it may still run.
        self._deadline = 0.0
        self._left = 0

    def slice(
        self, queues: Sequence[QueueKeys], tick: Tick, now_ms: int | None
    ) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty for each queue whose turn has come; `queues` are sorted by name.

        The first calls are made here, ten queues in a trip: most queues need no other.
        """
        now = self._clock()
        self._deadline, self._left = now + self._share_s, _SLICES
        turns = len(queues) * (now - self._last) / self._round_s
        self._due = min(float(_MOST), self._due + turns)
        self._last = now
        for queue in [*self._unfinished][:_MOST]:
            work = self._unfinished.pop(queue)
            at = bisect_left(queues, queue, key=_name)
            if at < len(queues) and queues[at].queue == queue:
                yield queues[at], self._in_share(queues[at], work, tick)
        number = min(math.floor(self._due), len(queues))
        self._due -= math.floor(self._due)
        first = bisect_right(queues, self._after, key=_name)
        turn = [queues[at % len(queues)] for at in range(first, first + number)]
        for at in range(0, number, _TOGETHER):
            some = turn[at : at + _TOGETHER]
            for keys, answers in zip(some, self._begin(some, now_ms), strict=True):
                self._after = keys.queue
                yield keys, self._go_on(keys, queues, answers, tick, now_ms)

    def _begin(
        self, some: Sequence[QueueKeys], now_ms: int | None
    ) -> Iterator[tuple[Any, Any, Any]]:
        answers = self._execute_each(
            [
                command
                for keys in some
                for command in (
                    prune(keys, cursors=START, now_ms=now_ms),
                    trim(keys, _TRIMMED, now_ms=now_ms),
                    recount(keys, now_ms=now_ms),
                )
            ]
        )
        return zip(answers[0::3], answers[1::3], answers[2::3], strict=True)

    def _go_on(
        self,
        keys: QueueKeys,
        queues: Sequence[QueueKeys],
        answers: tuple[Any, Any, Any],
        tick: Tick,
        now_ms: int | None,
    ) -> Iterator[None]:
        """Count the results of the first calls, and prune to the end. Raises the error of a call that failed."""
        pruned, trimmed, recounted = answers
        if not isinstance(trimmed, QworkerError):
            tick.trimmed += trimmed.expired
        if isinstance(pruned, QworkerError):
            raise pruned
        yield from self._in_share(keys, self._prune(keys, queues, pruned, now_ms), tick)
        for answer in (trimmed, recounted):
            if isinstance(answer, QworkerError):
                raise answer

    def _in_share(self, keys: QueueKeys, work: Iterator[int], tick: Tick) -> Iterator[None]:
        """Count what each trip of the work forgets; what this pass has no time for is left to the next."""
        for forgotten in work:
            tick.pruned += forgotten
            self._left -= 1
            if self._left <= 0 or self._clock() >= self._deadline:
                self._unfinished[keys.queue] = work
                return
            yield

    def _prune(
        self, keys: QueueKeys, queues: Sequence[QueueKeys], pruned: Pruned, now_ms: int | None
    ) -> Iterator[int]:
        """Prune a queue to its end; yields after each trip how many entries it has forgotten."""
        yield pruned.forgotten
        while not pruned.done:
            (done,) = self._execute_each([prune(keys, cursors=pruned.cursors, now_ms=now_ms)])
            if isinstance(done, QworkerError):
                raise done
            pruned = done
            yield pruned.forgotten
        if pruned.until_ms is not None:
            yield from self._forget(keys, queues, pruned.until_ms)

    def _forget(self, keys: QueueKeys, queues: Sequence[QueueKeys], until_ms: int) -> Iterator[int]:
        walk = Trips(forget_tombstones(keys, until_ms, queues))
        while (trip := walk.next()) is not None:
            walk.answers = self._execute_each(trip.commands)
            yield 0
        yield walk.result or 0


def _name(keys: QueueKeys) -> str:
    return keys.queue
