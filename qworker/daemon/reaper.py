"""One pass of the reaper: sweep every queue, and move due and timed-out messages, a slice of each queue in turn.

Why slices: a script that moves everything blocks the server (964,500 due messages at once: 1.7 s), so each
call is short, and queues take turns, so that one with a million due messages does not make the others late. Any number
of reapers may run: every call reads the state in Redis, and moves a message only from its current place.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeVar

import structlog

from qworker.client.execute.recurring import RecurringCalls
from qworker.client.execute.sync import Client
from qworker.daemon.attention import Attention
from qworker.daemon.journal_shedding import JournalShedding
from qworker.daemon.overdue import OverdueLeases
from qworker.daemon.presence import Presence, reaper_name
from qworker.daemon.pruning import Pruning
from qworker.daemon.registry import AWAY, Registry
from qworker.daemon.relaying import Relaying
from qworker.daemon.reshard import ShardUpkeep
from qworker.daemon.scheduler import Scheduler
from qworker.daemon.sharing import Sharing
from qworker.daemon.tick import Tick
from qworker.engine.extend import extend
from qworker.engine.raw import server_time
from qworker.engine.reap import QueueSweep, Reaped, promote, reap, sweep, trim
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
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_TICK_MS", "Reaper"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

#: The longest tick that the scripts can distinguish from a gap (see `lua/lib/grace.lua`).
MAX_TICK_MS: Final = 60_000
#: Queues of one sweep: 2 ms of the server (500 took up to 4 ms).
SWEPT_AT_ONCE: Final = 250
#: With more queues than that, most are first asked whether they hold anything that has a time: queues of a question,
#: questions in a trip. Each pass still sweeps a tenth of the others, for expired messages at the head of ready.
_TOGETHER: Final = 10
_QUESTIONS: Final = 100
_HEADS_EVERY: Final = 10
#: Messages of one promote: 0.3 to 0.6 ms of the server, for which others wait. With 500 a tenth more are moved in
#: all, and the wait is twice as long.
PROMOTED_AT_ONCE: Final = 200
#: Messages that one reap should move, 2 ms of the server; the first call shows how many leases hold as many.
REAPED_AT_ONCE: Final = 300
#: Expired messages of one trim.
TRIMMED_AT_ONCE: Final = 500
_MOST_LEASES: Final = 100
#: Overdue leases that a sweep lists, and those of a page when there are more.
_LISTED: Final = 10
_LISTED_AGAIN: Final = 100
#: A lease that cannot be reaped is put behind the others for this long.
ASIDE_MS: Final = 60_000
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
        self.presence = Presence(self._calls.execute, namespace, name or reaper_name(), clock=clock)
        clustered = client.factory.clustered
        self.scheduler = Scheduler(
            self._calls.execute, client.ids, namespace=namespace, clustered=clustered, clock=clock
        )
        self._pruning = Pruning(self._calls.execute_each, tick_ms=tick_ms, clock=clock)
        self._relaying = Relaying(self._calls, namespace, clock=clock)
        self._shards = ShardUpkeep(self._calls.execute, namespace, client.ids, clock=clock)
        self._sharing = Sharing(self._calls, namespace, self.presence.name, clock=clock)
        self._shedding = JournalShedding(self._calls.execute, masters, clock=clock)
        self._throttle = LogThrottle(clock=clock)
        self._stopped = False
        self._attention = Attention(tick_ms, clock=clock)
        #: Queues that `Attention` left alone for longer than a tick, and for how many ms.
        self._paused: dict[str, int] = {}
        #: The queue to begin with: the one at which the last pass ran out of time.
        self._turn = ""

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
        candidates = self._candidates(queues)
        duties = self._sweep(self._in_turn(candidates), tick, now_ms)
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

    # -- sweeping ------------------------------------------------------------------------------

    def _candidates(self, queues: Sequence[QueueKeys]) -> Sequence[QueueKeys]:
        """Leave out queues that a sweep would find quiet: most of many hold no lease and no delayed message."""
        self._paused = {}
        if len(queues) <= SWEPT_AT_ONCE:
            return queues
        together = 1 if self._calls.factory.clustered else _TOGETHER
        groups = self._attention.due(queues, together, self.registry.reapers)
        chosen = {at for at, group in enumerate(groups) if group.checks % _HEADS_EVERY == 0}
        asked = [at for at in range(len(groups)) if at not in chosen]
        for first in range(0, len(asked), _QUESTIONS):
            some = asked[first : first + _QUESTIONS]
            questions = [groups[at].question for at in some]
            answers = self._calls.execute_each(questions)
            for at, answer in zip(some, answers, strict=True):
                if answer != 0:  # Or an error: the sweep finds out whose.
                    chosen.add(at)
                    self._attention.active(groups[at].queues[0].queue)
        self._paused = self._attention.checked(groups)
        return [keys for at in sorted(chosen) for keys in groups[at].queues]

    def _sweep(self, queues: Sequence[QueueKeys], tick: Tick, now_ms: int | None) -> deque[Duty]:
        duties: deque[Duty] = deque()
        for chunk, tick_ms in self._chunks(queues):
            first = 0
            while first < len(chunk):
                command = sweep(chunk[first:], tick_ms, leases=_LISTED, now_ms=now_ms)
                swept_ms, sweeps = self._calls.execute(command)
                # The time of the pass's first call: messages due later wait for the next pass.
                tick.now_ms = tick.now_ms or swept_ms
                for keys, swept in zip(chunk[first:], sweeps, strict=False):
                    if not swept.quiet:
                        self._attention.active(keys.queue)
                        duties += [(keys, duty) for duty in self._duties(keys, swept, tick, now_ms)]
                first += len(sweeps)
        return duties

    def _chunks(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[Sequence[QueueKeys], int]]:
        """Yield queues to sweep together, and the tick for the script: a pause on purpose is not a gap."""
        paused = [keys for keys in queues if keys.queue in self._paused]
        others = [keys for keys in queues if keys.queue not in self._paused] if paused else queues
        longest_ms = max((self._paused[keys.queue] for keys in paused), default=0)
        # A gap is longer than three of these.
        paused_ms = min(MAX_TICK_MS, math.ceil((longest_ms + max(3 * self.tick_ms, 2000)) / 3))
        for some, tick_ms in ((others, self.tick_ms), (paused, paused_ms)):
            for first in range(0, len(some), SWEPT_AT_ONCE):
                yield some[first : first + SWEPT_AT_ONCE], tick_ms

    def _duties(
        self, keys: QueueKeys, swept: QueueSweep, tick: Tick, now_ms: int | None
    ) -> Iterator[Iterator[None]]:
        if swept.broken is not None:
            self._broken(keys.queue, swept.broken, tick)
            return
        if swept.next_due_ms is not None:
            if swept.next_due_ms <= tick.now_ms:
                yield self._promote(keys, tick, now_ms)
            else:
                tick.wake_at(swept.next_due_ms)
        if swept.overdue:
            yield self._reap(keys, swept.overdue, tick, now_ms)
        # A deadline in the past that is not overdue is in the grace after a gap; the next tick checks it again.
        elif swept.next_deadline_ms is not None:
            tick.wake_at(swept.next_deadline_ms)
        if swept.expired_at_head:
            yield self._trim(keys, tick, now_ms)

    # -- moving --------------------------------------------------------------------------------

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

    def _unless_away(self, work: Callable[[], None], tick: Tick) -> None:
        """Do work that fails while a node of a Cluster is away; the queues of other nodes are reaped anyway."""
        try:
            work()
        except AWAY as error:
            if not self._calls.factory.clustered:
                raise
            self._failed("", error, tick)

    def _step(self, keys: QueueKeys, duty: Iterator[None], tick: Tick) -> bool:
        """Run one slice of a duty; returns whether there is more. An error of this queue alone is counted."""
        try:
            next(duty)
        except StopIteration:
            return False
        except BrokenQueueError as error:
            self._broken(keys.queue, str(error), tick)
            return False
        except (RefusedError, InvalidError, ServerError) as error:
            # A user without rights to one queue may have them to others.
            if not concerns_the_call(error) and not isinstance(error, AccessDeniedError):
                raise
            self._failed(keys.queue, error, tick)
            return False
        return True

    def _promote(self, keys: QueueKeys, tick: Tick, now_ms: int | None) -> Iterator[None]:
        while True:
            done = self._calls.execute(promote(keys, PROMOTED_AT_ONCE, now_ms=now_ms))
            tick.promoted += done.moved
            tick.ended += done.ended
            tick.late(done.lateness_ms)
            if done.next_due_ms is None:
                return
            if done.next_due_ms > tick.now_ms or not done.moved + done.ended:
                tick.wake_at(done.next_due_ms)
                return
            yield

    def _reap(
        self, keys: QueueKeys, overdue: tuple[str, ...], tick: Tick, now_ms: int | None
    ) -> Iterator[None]:
        """Reap leases so that messages keep their order.

        Leases of several messages go to the head of ready, so the latest is first; those of a message alone go behind
        the other suspects, so the earliest is first.
        """
        if len(overdue) < _LISTED:
            page = OverdueLeases(overdue)
            yield from self._reap_page(keys, page, tick, now_ms)
            if page.skipped:
                page = OverdueLeases(tuple(page.skipped), lone=True)
                yield from self._reap_page(keys, page, tick, now_ms)
            return
        # Both kinds are walked to their ends, in turn.
        moved: dict[bool, set[str]] = {False: set(), True: set()}
        walks = deque(self._walk(keys, lone, moved, tick, now_ms) for lone in (False, True))
        while walks:
            walk = walks.popleft()
            for _ in walk:
                walks.append(walk)
                yield
                break

    def _walk(
        self,
        keys: QueueKeys,
        lone: bool,
        moved: dict[bool, set[str]],
        tick: Tick,
        now_ms: int | None,
    ) -> Iterator[None]:
        """Reap all overdue leases of one kind, page by page; `moved`: leases that the walks of both kinds took away."""
        passed: set[str] = set()
        while True:
            command = sweep(
                [keys],
                self.tick_ms,
                leases=_LISTED_AGAIN,
                newest=not lone,
                skip=len(passed - moved[not lone]),
                now_ms=now_ms,
            )
            overdue = self._calls.execute(command)[1][0].overdue
            page = OverdueLeases(overdue, lone=lone)
            for _ in self._reap_page(keys, page, tick, now_ms):
                moved[lone] |= page.moved
                yield
            passed.update(page.skipped)
            if len(overdue) < _LISTED_AGAIN or not (page.moved or page.skipped):
                return

    def _reap_page(
        self, keys: QueueKeys, page: OverdueLeases, tick: Tick, now_ms: int | None
    ) -> Iterator[None]:
        at_once = 1
        while page.waiting:
            ids = page.take(at_once)
            done = self._reap_leases(keys, ids, tick, now_ms, lone=page.lone)
            if done is None:
                page.moved.update(ids)
            else:
                page.skip(done.skipped)
                asked = [lease_id for lease_id in ids if lease_id not in done.skipped]
                if done.left:
                    # The script reaps leases in turn up to a bound, so none of the first `done.leases` is left.
                    reaped = page.first(asked, done.leases)
                    page.moved.update(reaped)
                    page.give_back([lease_id for lease_id in asked if lease_id not in reaped])
                else:
                    page.moved.update(asked)
                if done.leases:
                    messages = max(1, done.messages // done.leases)
                    at_once = min(_MOST_LEASES, max(1, REAPED_AT_ONCE // messages))
                elif done.skipped:
                    at_once = _MOST_LEASES
            yield

    def _reap_leases(
        self,
        keys: QueueKeys,
        ids: Sequence[str],
        tick: Tick,
        now_ms: int | None,
        *,
        lone: bool,
    ) -> Reaped | None:
        """Reap leases. If the script fails, reap them one by one, and put those that fail behind the others."""
        only: Literal["lone", "several"] = "lone" if lone else "several"
        try:
            done = self._calls.execute(reap(keys, ids, self.tick_ms, only=only, now_ms=now_ms))
        except ServerError as error:
            if not concerns_the_call(error):
                raise
            if len(ids) > 1:
                for lease_id in ids:
                    self._reap_leases(keys, [lease_id], tick, now_ms, lone=lone)
            else:
                self._calls.execute(extend(keys, ids, ASIDE_MS, now_ms=now_ms))
                tick.set_aside += 1
                self._failed(keys.queue, error, tick, lease_id=ids[0])
            return None
        tick.leases += done.leases
        tick.messages += done.messages
        tick.dead += done.dead
        tick.suspects += done.suspects
        tick.set_aside += done.set_aside
        tick.late(done.lateness_ms)
        return done

    def _trim(self, keys: QueueKeys, tick: Tick, now_ms: int | None) -> Iterator[None]:
        while True:
            done = self._calls.execute(trim(keys, TRIMMED_AT_ONCE, now_ms=now_ms))
            tick.trimmed += done.expired
            if not done.full:
                return
            yield

    # -- counting errors -----------------------------------------------------------------------

    def _broken(self, queue: str, problem: str, tick: Tick) -> None:
        tick.broken.add(queue)
        if (suppressed := self._throttle.admit(f"broken {queue}")) is not None:
            _log.error("queue_broken", queue=queue, problem=problem, held_back=suppressed)

    def _failed(self, queue: str, error: Exception, tick: Tick, **fields: str) -> None:
        tick.errors += 1
        if (suppressed := self._throttle.admit(f"failed {queue}")) is not None:
            _log.error(
                "queue_failed", queue=queue, problem=str(error), held_back=suppressed, **fields
            )


#: A queue and work on it, a slice per step.
Duty = tuple[QueueKeys, Iterator[None]]
