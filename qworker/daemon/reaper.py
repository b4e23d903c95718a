"""One pass of the reaper: look at every queue, and move what is due or timed out, a slice of each in turn.

Why slices: a script that moves everything blocks the server for as long (964,500 due messages at once: 1.7 s), so each
call is short, and queues take turns, so that one with a million due messages does not make the others late. Nothing
depends on there being one reaper: every call looks at the truth in Redis, and moves a message only from where it is.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeVar

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.extending import extend
from qworker.client.commands.reaping import Look, Reaped, promote, reap, sweep, trim
from qworker.client.sync import Client
from qworker.daemon.attention import Attention
from qworker.daemon.dividing import Dividing
from qworker.daemon.overdue import OverdueLeases
from qworker.daemon.presence import Presence, reaper_name
from qworker.daemon.pruning import Pruning
from qworker.daemon.registry import AWAY, Registry
from qworker.daemon.scheduler import Scheduler
from qworker.daemon.shedding import Shedding
from qworker.daemon.tick import Tally, Tick
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
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_TICK_MS", "Reaper"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

#: The longest tick that the scripts know how to tell from a gap (see `lua/lib/visit.lua`).
MAX_TICK_MS: Final = 60_000
#: Queues of one sweep: 2 ms of the server (500 took up to 4 ms).
SWEPT_AT_ONCE: Final = 250
#: Where there are more queues than that, most are asked first whether they hold anything that has a time: so many
#: together, so many questions in a trip; and what has expired at the head of ready is looked for every so many passes.
_TOGETHER: Final = 10
_QUESTIONS: Final = 100
_HEADS_EVERY: Final = 10
#: Messages of one promote: 0.3 to 0.6 ms of the server, for which others wait. With 500 a tenth more are moved in
#: all, and the wait is twice as long.
PROMOTED_AT_ONCE: Final = 200
#: Messages that one reap should come to, 2 ms of the server; how many leases these are shows after the first call.
REAPED_AT_ONCE: Final = 300
#: Expired messages of one trim.
TRIMMED_AT_ONCE: Final = 500
_MOST_LEASES: Final = 100
_NAMED: Final = 10
_NAMED_AGAIN: Final = 100
#: How long a lease that cannot be reaped is put behind the others.
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

        `tick_ms` (1-60,000): how often `tick` will be called at least. `budget_ms`: how long a pass may go on moving
        messages before it looks at all queues again; None is half a tick, 0 one call. `name`: under which others see
        it, None for host and pid. Raises `InvalidOptionError`.
        """
        if not 1 <= tick_ms <= MAX_TICK_MS:
            raise InvalidOptionError("tick", f"is {tick_ms} ms", "it must be from 1 ms to 60 s")
        self.namespace = namespace
        self.tick_ms = tick_ms
        self._client = client
        self._budget_s = (tick_ms / 2 if budget_ms is None else budget_ms) / 1000
        self._clock = clock
        masters = client.factory.masters
        self.registry = Registry(self._execute, namespace, masters, clock=clock)
        self.presence = Presence(self._execute, namespace, name or reaper_name(), clock=clock)
        clustered = client.factory.clustered
        self.scheduler = Scheduler(
            self._execute, client.ids, namespace=namespace, clustered=clustered, clock=clock
        )
        self._pruning = Pruning(self._execute, tick_ms=tick_ms, clock=clock)
        self._dividing = Dividing(self._execute, namespace, client.ids, clock=clock)
        self._shedding = Shedding(self._execute, masters, clock=clock)
        self._seldom = Seldom(clock=clock)
        self._stopped = False
        self._attention = Attention(tick_ms, clock=clock)
        #: Queues of this pass that were left alone for longer than a tick on purpose, and for how many ms.
        self._paused: dict[str, int] = {}
        #: The queue that comes first: where the last pass ran out of time.
        self._turn = ""

    def tick(self, now_ms: int | None = None) -> Tick:
        """Make one bounded pass and say what it came to.

        A queue that cannot be reaped (a key of another type, a script that fails on it) is counted and does not stop
        the others. Raises the `ServerError` of a server that does not serve. `now_ms` replaces the server's time in
        tests, and is refused by queues without `meta.test`.
        """
        started = self._clock()
        self.registry.reapers = max(1, self.presence.reapers)
        self.registry.refresh(self._budget_s)
        queues = self.registry.queues
        tally = Tally(queues=len(queues))
        promising = self._promising(queues)
        duties = self._look(self._in_turn(promising), tally, now_ms)
        # The budget is for moving alone: with so many queues that looking uses it up, some work is done all the same.
        tally.looking_s = self._clock() - started
        deadline = started + tally.looking_s + self._budget_s
        if not promising:
            tally.now_ms = now_ms or self._execute(Command(None, (), ("TIME",), _server_ms))
        self._shedding.look(queues)
        self._sparing(lambda: self.scheduler.fire(queues, tally, deadline, now_ms), tally)
        self._serve(duties, tally, deadline)
        pruning = self._pruning.slice(self.registry.queues, tally, now_ms)
        self._sparing(lambda: self._each_alone(pruning, tally), tally)
        dividing = self._dividing.slice(self.registry.queues)
        self._sparing(lambda: self._each_alone(dividing, tally), tally)
        self._sparing(lambda: self.presence.seen(tally.now_ms), tally)
        return tally.tick(self.presence.reapers, self._clock() - started)

    def stop(self) -> None:
        """Let the running script be the last one of a pass that moves messages. From any thread."""
        self._stopped = True

    def close(self) -> None:
        """Leave the list of reapers, if the server can be told."""
        try:
            self.presence.leave()
        except QworkerError as error:
            _log.info("presence_left_behind", reaper=self.presence.name, problem=str(error))

    def _execute(self, command: Command[T], /) -> T:
        return self._client.execute(command, give_up_s=_GIVE_UP_S)

    def _in_turn(self, queues: Sequence[QueueKeys]) -> list[QueueKeys]:
        first = bisect_left(queues, self._turn, key=lambda keys: keys.queue)
        return [*queues[first:], *queues[:first]]

    # -- looking -------------------------------------------------------------------------------

    def _promising(self, queues: Sequence[QueueKeys]) -> Sequence[QueueKeys]:
        """Leave out what a sweep would find quiet: most of many queues hold no lease and no delayed message."""
        self._paused = {}
        if len(queues) <= SWEPT_AT_ONCE:
            return queues
        together = 1 if self._client.factory.clustered else _TOGETHER
        groups = self._attention.due(queues, together, self.registry.reapers)
        chosen = {at for at, group in enumerate(groups) if group.looks % _HEADS_EVERY == 0}
        asked = [at for at in range(len(groups)) if at not in chosen]
        for first in range(0, len(asked), _QUESTIONS):
            some = asked[first : first + _QUESTIONS]
            questions = [groups[at].question for at in some]
            answers = self._client.execute_each(questions, give_up_s=_GIVE_UP_S)
            for at, answer in zip(some, answers, strict=True):
                if answer != 0:  # An error as well: the sweep tells whose.
                    chosen.add(at)
                    self._attention.active(groups[at].queues[0].queue)
        self._paused = self._attention.looked(groups)
        return [keys for at in sorted(chosen) for keys in groups[at].queues]

    def _look(self, queues: Sequence[QueueKeys], tally: Tally, now_ms: int | None) -> deque[Duty]:
        duties: deque[Duty] = deque()
        for chunk, tick_ms in self._chunks(queues):
            seen_ms, looks = self._execute(sweep(chunk, tick_ms, leases=_NAMED, now_ms=now_ms))
            # The first time of the pass: what is due later than that waits for the next one.
            tally.now_ms = tally.now_ms or seen_ms
            for keys, look in zip(chunk, looks, strict=True):
                if not look.quiet:
                    self._attention.active(keys.queue)
                    duties += [(keys, duty) for duty in self._duties(keys, look, tally, now_ms)]
        return duties

    def _chunks(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[Sequence[QueueKeys], int]]:
        """Yield queues to sweep together, and how often this reaper comes by: a pause on purpose is no gap."""
        paused = [keys for keys in queues if keys.queue in self._paused]
        others = [keys for keys in queues if keys.queue not in self._paused] if paused else queues
        longest_ms = max((self._paused[keys.queue] for keys in paused), default=0)
        # A gap is what is longer than three of these.
        paused_ms = min(MAX_TICK_MS, math.ceil((longest_ms + max(3 * self.tick_ms, 2000)) / 3))
        for some, tick_ms in ((others, self.tick_ms), (paused, paused_ms)):
            for first in range(0, len(some), SWEPT_AT_ONCE):
                yield some[first : first + SWEPT_AT_ONCE], tick_ms

    def _duties(
        self, keys: QueueKeys, look: Look, tally: Tally, now_ms: int | None
    ) -> Iterator[Iterator[None]]:
        if look.broken is not None:
            self._broken(keys.queue, look.broken, tally)
            return
        if look.next_due_ms is not None:
            if look.next_due_ms <= tally.now_ms:
                yield self._promote(keys, tally, now_ms)
            else:
                tally.wake_at(look.next_due_ms)
        if look.overdue:
            yield self._reap(keys, look.overdue, tally, now_ms)
        # A deadline in the past that is not overdue has its grace after a gap: the next tick looks again.
        elif look.next_deadline_ms is not None:
            tally.wake_at(look.next_deadline_ms)
        if look.expired_at_head:
            yield self._trim(keys, tally, now_ms)

    # -- serving -------------------------------------------------------------------------------

    def _serve(self, duties: deque[Duty], tally: Tally, deadline: float) -> None:
        """Take slices of the duties in turn until all are done or the time is up, one slice at least."""
        self._turn = ""
        began = False
        while duties:
            if self._stopped or (began and self._clock() >= deadline):
                tally.more = True
                self._turn = duties[0][0].queue
                return
            began = True
            keys, duty = duties.popleft()
            if self._step(keys, duty, tally):
                duties.append((keys, duty))

    def _each_alone(self, duties: Iterable[Duty], tally: Tally) -> None:
        for keys, duty in duties:
            while self._step(keys, duty, tally):
                pass

    def _sparing(self, work: Callable[[], None], tally: Tally) -> None:
        """Do what may fail because a node of a Cluster is away; what the others hold is reaped all the same."""
        try:
            work()
        except AWAY as error:
            if not self._client.factory.clustered:
                raise
            self._failed("", error, tally)

    def _step(self, keys: QueueKeys, duty: Iterator[None], tally: Tally) -> bool:
        """Take one slice of a duty; returns whether there is more. What concerns this queue alone is noted."""
        try:
            next(duty)
        except StopIteration:
            return False
        except BrokenQueueError as error:
            self._broken(keys.queue, str(error), tally)
            return False
        except (RefusedError, InvalidError, ServerError) as error:
            # A right that is missing for one queue is there for others.
            if not concerns_the_call(error) and not isinstance(error, AccessDeniedError):
                raise
            self._failed(keys.queue, error, tally)
            return False
        return True

    def _promote(self, keys: QueueKeys, tally: Tally, now_ms: int | None) -> Iterator[None]:
        while True:
            done = self._execute(promote(keys, PROMOTED_AT_ONCE, now_ms=now_ms))
            tally.promoted += done.moved
            tally.ended += done.ended
            tally.late(done.lateness_ms)
            if done.next_due_ms is None:
                return
            if done.next_due_ms > tally.now_ms or not done.moved + done.ended:
                tally.wake_at(done.next_due_ms)
                return
            yield

    def _reap(
        self, keys: QueueKeys, overdue: tuple[str, ...], tally: Tally, now_ms: int | None
    ) -> Iterator[None]:
        """Reap leases so that messages come back in their old order: to the head the latest leases first, but those of
        a message alone, which goes behind the other suspects, the earliest first.
        """
        if len(overdue) < _NAMED:
            page = OverdueLeases(overdue)
            yield from self._reap_page(keys, page, tally, now_ms)
            if page.skipped:
                page = OverdueLeases(tuple(page.skipped), lone=True)
                yield from self._reap_page(keys, page, tally, now_ms)
            return
        # Each kind is walked to its end, in turn.
        moved: dict[bool, set[str]] = {False: set(), True: set()}
        walks = deque(self._walk(keys, lone, moved, tally, now_ms) for lone in (False, True))
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
        tally: Tally,
        now_ms: int | None,
    ) -> Iterator[None]:
        """Reap all overdue leases of one kind, page by page; `moved`: what the walk of each kind has taken away."""
        passed: set[str] = set()
        while True:
            command = sweep(
                [keys],
                self.tick_ms,
                leases=_NAMED_AGAIN,
                newest=not lone,
                skip=len(passed - moved[not lone]),
                now_ms=now_ms,
            )
            overdue = self._execute(command)[1][0].overdue
            page = OverdueLeases(overdue, lone=lone)
            for _ in self._reap_page(keys, page, tally, now_ms):
                moved[lone] |= page.moved
                yield
            passed.update(page.skipped)
            if len(overdue) < _NAMED_AGAIN or not (page.moved or page.skipped):
                return

    def _reap_page(
        self, keys: QueueKeys, page: OverdueLeases, tally: Tally, now_ms: int | None
    ) -> Iterator[None]:
        at_once = 1
        while page.waiting:
            ids = page.take(at_once)
            done = self._reap_leases(keys, ids, tally, now_ms, lone=page.lone)
            if done is None:
                page.moved.update(ids)
            else:
                page.skip(done.skipped)
                asked = [each for each in ids if each not in done.skipped]
                if done.left:
                    # Leases are taken in turn until a bound, so of the first so many none is left.
                    reaped = page.first(asked, done.leases)
                    page.moved.update(reaped)
                    page.give_back([each for each in asked if each not in reaped])
                else:
                    page.moved.update(asked)
                if done.leases:
                    each = max(1, done.messages // done.leases)
                    at_once = min(_MOST_LEASES, max(1, REAPED_AT_ONCE // each))
                elif done.skipped:
                    at_once = _MOST_LEASES
            yield

    def _reap_leases(
        self,
        keys: QueueKeys,
        ids: Sequence[str],
        tally: Tally,
        now_ms: int | None,
        *,
        lone: bool,
    ) -> Reaped | None:
        """Reap leases; where the script fails on them one by one, and what still fails is put behind the others."""
        only: Literal["lone", "several"] = "lone" if lone else "several"
        try:
            done = self._execute(reap(keys, ids, self.tick_ms, only=only, now_ms=now_ms))
        except ServerError as error:
            if not concerns_the_call(error):
                raise
            if len(ids) > 1:
                for lease_id in ids:
                    self._reap_leases(keys, [lease_id], tally, now_ms, lone=lone)
            else:
                self._execute(extend(keys, ids, ASIDE_MS, now_ms=now_ms))
                tally.set_aside += 1
                self._failed(keys.queue, error, tally, lease_id=ids[0])
            return None
        tally.leases += done.leases
        tally.messages += done.messages
        tally.dead += done.dead
        tally.suspects += done.suspects
        tally.set_aside += done.set_aside
        tally.late(done.lateness_ms)
        return done

    def _trim(self, keys: QueueKeys, tally: Tally, now_ms: int | None) -> Iterator[None]:
        while True:
            done = self._execute(trim(keys, TRIMMED_AT_ONCE, now_ms=now_ms))
            tally.trimmed += done.expired
            if not done.full:
                return
            yield

    # -- noting --------------------------------------------------------------------------------

    def _broken(self, queue: str, problem: str, tally: Tally) -> None:
        tally.broken.add(queue)
        if (held := self._seldom.more(f"broken {queue}")) is not None:
            _log.error("queue_broken", queue=queue, problem=problem, held_back=held)

    def _failed(self, queue: str, error: Exception, tally: Tally, **fields: str) -> None:
        tally.errors += 1
        if (held := self._seldom.more(f"failed {queue}")) is not None:
            _log.error("queue_failed", queue=queue, problem=str(error), held_back=held, **fields)


#: A queue and what there is to do for it, a slice per step.
Duty = tuple[QueueKeys, Iterator[None]]


def _server_ms(reply: list[bytes]) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
