"""One pass of the reaper: sweep every queue, and move due and timed-out messages, a slice of each queue in turn.

Why slices: a script that moves everything blocks the server (964,500 due messages at once: 1.7 s), so each
call is short, and queues take turns, so that one with a million due messages does not make the others late. Any number
of reapers may run: every call reads the state in Redis, and moves a message only from its current place.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.recurring import RecurringCalls
from qworker.client.execute.sync import Client
from qworker.daemon.balancing import Sharing
from qworker.daemon.journal_shedding import JournalShedding
from qworker.daemon.memory import MemoryUse
from qworker.daemon.moving import Moving
from qworker.daemon.presence import ReaperPresence, reaper_name
from qworker.daemon.problems import Problems
from qworker.daemon.pruning import Pruning
from qworker.daemon.registry import Registry
from qworker.daemon.relaying import Relaying
from qworker.daemon.scheduler import Scheduler
from qworker.daemon.shard_upkeep import ShardUpkeep
from qworker.daemon.silent_workers import SilentWorkers
from qworker.daemon.sweeping import MAX_TICK_MS, Sweeping
from qworker.daemon.tick import Tick
from qworker.engine.raw import server_time
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InvalidError,
    InvalidOptionError,
    QworkerError,
    RefusedError,
    ServerError,
    concerns_the_call,
)
from qworker.wire.keys import QueueKeys

__all__ = ["Reaper"]

_log = structlog.get_logger(__name__)

#: Seconds for which a call is tried again before the whole pass fails; the loop tries again as well.
_GIVE_UP_S: Final = 0.5


class Reaper:
    """Reaps the queues of one namespace. One thread at a time may call `tick`."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        tick_ms: int = 1000,
        budget_ms: int | None = None,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a reaper that calls nothing yet.

        `tick_ms` (1-60,000): the longest time between two calls of `tick`. `budget_ms`: how long a pass may move
        messages before the next one sweeps all queues again; None is half a tick, 0 one call. `name` in the list of
        reapers; None: host and pid. Raises `InvalidOptionError`.
        """
        if not 1 <= tick_ms <= MAX_TICK_MS:
            raise InvalidOptionError("tick", f"is {tick_ms} ms", "it must be from 1 ms to 60 s")
        self.namespace = namespace
        self.tick_ms = tick_ms
        self._calls = RecurringCalls(client, give_up_s=_GIVE_UP_S)
        self._budget_s = (tick_ms / 2 if budget_ms is None else budget_ms) / 1000
        self._clock = clock
        masters = client.factory.masters
        self.registry = Registry(self._calls.execute, namespace, masters, clock=clock)
        self.presence = ReaperPresence(
            self._calls.execute, namespace, name or reaper_name(), clock=clock
        )
        clustered = client.factory.clustered
        self.scheduler = Scheduler(
            self._calls.execute, client.ids, namespace=namespace, clustered=clustered, clock=clock
        )
        self._pruning = Pruning(self._calls.execute_each, tick_ms=tick_ms, clock=clock)
        self._relaying = Relaying(self._calls, namespace, clock=clock)
        self._shards = ShardUpkeep(self._calls.execute, namespace, client.ids, clock=clock)
        self._sharing = Sharing(self._calls, namespace, self.presence.name, clock=clock)
        self._silent = SilentWorkers(self._calls.execute, namespace, clock=clock)
        self._shedding = JournalShedding(self._calls.execute, masters, clock=clock)
        self._problems = Problems(clock=clock)
        self._sweeping = Sweeping(self._calls, tick_ms, clock=clock)
        self._moving = Moving(self._calls, tick_ms, self._problems)
        self._stopped = False
        #: The queue to begin with: the one at which the last pass ran out of time.
        self._turn = ""

    @property
    def fullest(self) -> MemoryUse | None:
        """The memory of the fullest server, as the last pass has read it; None if it could not."""
        return self._shedding.fullest

    def tick(self, now_ms: int | None = None) -> Tick:
        """Make one bounded pass.

        A queue that cannot be reaped (a key of another type, a script that fails on it) is counted and does not stop
        the others. Raises the `ServerError` of a server that does not serve. `now_ms` replaces the server's time in
        tests; queues without `meta.test` refuse it.
        """
        started = self._clock()
        self.registry.reapers = max(1, self.presence.reapers)
        self.registry.refresh(self._budget_s)
        queues = self.registry.queues
        tick = Tick(queues=len(queues))
        candidates = self._sweeping.candidates(queues, self.registry.reapers)
        duties: deque[Duty] = deque()
        for keys, swept in self._sweeping.sweep(self._in_turn(candidates), tick, now_ms):
            duties += [(keys, duty) for duty in self._moving.duties(keys, swept, tick, now_ms)]
        # The budget is for moving alone: if the sweep of many queues takes longer, some work is still done.
        tick.sweep_s = self._clock() - started
        deadline = started + tick.sweep_s + self._budget_s
        if not candidates:
            tick.now_ms = now_ms or self._calls.execute(server_time())
        self._shedding.check(queues)
        self._unless_away(lambda: self.scheduler.fire(queues, tick, deadline, now_ms), tick)
        self._serve(duties, tick, deadline)
        relaying = self._relaying.slice(queues)
        self._unless_away(lambda: self._run_all(relaying, tick), tick)
        pruning = self._pruning.slice(queues, tick, now_ms)
        self._unless_away(lambda: self._run_all(pruning, tick), tick)
        shards = self._shards.slice(queues)
        self._unless_away(lambda: self._run_all(shards, tick), tick)
        self._unless_away(lambda: self._sharing.tend(tick), tick)
        self._unless_away(lambda: self.presence.seen(tick.now_ms), tick)
        reapers = self.presence.reapers
        self._unless_away(lambda: self._silent.forget(tick.now_ms, reapers), tick)
        tick.reapers, tick.elapsed_s = self.presence.reapers, self._clock() - started
        return tick

    def stop(self) -> None:
        """End a pass that moves messages after the running script. From any thread."""
        self._stopped = True

    def close(self) -> None:
        """Leave the list of reapers, if the server answers."""
        try:
            self.presence.leave()
        except QworkerError as error:
            _log.info("presence_left_behind", reaper=self.presence.name, problem=str(error))

    def _in_turn(self, queues: Sequence[QueueKeys]) -> list[QueueKeys]:
        first = bisect_left(queues, self._turn, key=lambda keys: keys.queue)
        return [*queues[first:], *queues[:first]]

    def _serve(self, duties: deque[Duty], tick: Tick, deadline: float) -> None:
        """Run slices of the duties in turn until all are done or the time is up, one slice at least."""
        self._turn = ""
        began = False
        while duties:
            if self._stopped or (began and self._clock() >= deadline):
                tick.more = True
                self._turn = duties[0][0].queue
                return
            began = True
            keys, duty = duties.popleft()
            if self._step(keys, duty, tick):
                duties.append((keys, duty))

    def _run_all(self, duties: Iterable[Duty], tick: Tick) -> None:
        for keys, duty in duties:
            while self._step(keys, duty, tick):
                pass

    def _unless_away(self, work: Callable[[], object], tick: Tick) -> None:
        """Do work that fails while a node of a Cluster is away; the queues of other nodes are reaped anyway."""
        try:
            work()
        except AWAY as error:
            if not self._calls.factory.clustered:
                raise
            self._problems.failed("", error, tick)

    def _step(self, keys: QueueKeys, duty: Iterator[None], tick: Tick) -> bool:
        """Run one slice of a duty; returns whether there is more. An error of this queue alone is counted."""
        try:
            next(duty)
        except StopIteration:
            return False
        except BrokenQueueError as error:
            self._problems.broken(keys.queue, str(error), tick)
            return False
        except (RefusedError, InvalidError, ServerError) as error:
            # A user without rights to one queue may have them to others.
            if not concerns_the_call(error) and not isinstance(error, AccessDeniedError):
                raise
            self._problems.failed(keys.queue, error, tick)
            return False
        return True


#: A queue and work on it, a slice per step.
Duty = tuple[QueueKeys, Iterator[None]]
