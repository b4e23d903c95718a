"""Moves of due, overdue and expired messages: each a generator, which makes one short call per step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from qworker.daemon.overdue import OverdueLeases
from qworker.daemon.sweeping import LISTED
from qworker.engine.extend import extend
from qworker.engine.reap import QueueSweep, Reaped, promote, reap, sweep, trim
from qworker.errors import ServerError, concerns_the_call

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.daemon.problems import Problems
    from qworker.daemon.tick import Tick
    from qworker.wire.keys import QueueKeys

__all__ = ["ASIDE_MS", "PROMOTED_AT_ONCE", "REAPED_AT_ONCE", "TRIMMED_AT_ONCE", "Moving"]

#: Messages of one promote: 0.3 to 0.6 ms of the server, for which others wait. With 500 a tenth more are moved in
#: all, and the wait is twice as long.
PROMOTED_AT_ONCE: Final = 200
#: Messages that one reap should move, 2 ms of the server; the first call shows how many leases hold as many.
REAPED_AT_ONCE: Final = 300
#: Expired messages of one trim.
TRIMMED_AT_ONCE: Final = 500
_MAX_LEASES: Final = 100
#: Overdue leases of a page, when a sweep has listed as many as it can.
_LISTED_AGAIN: Final = 100
#: A lease that cannot be reaped is put behind the others for this long.
ASIDE_MS: Final = 60_000


class Moving:
    """Moves messages of one queue at a time."""

    def __init__(self, calls: RecurringCalls, tick_ms: int, problems: Problems) -> None:
        self._calls = calls
        self._tick_ms = tick_ms
        self._problems = problems

    def duties(
        self, keys: QueueKeys, swept: QueueSweep, tick: Tick, now_ms: int | None
    ) -> Iterator[Iterator[None]]:
        """Yield the moves that a sweep of the queue has found to be due, and note when the next ones will be."""
        if swept.broken is not None:
            self._problems.broken(keys.queue, swept.broken, tick)
            return
        if swept.unserved is not None:
            self._problems.failed(keys.queue, swept.unserved, tick)
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
        if len(overdue) < LISTED:
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
                self._tick_ms,
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
                tried = [lease_id for lease_id in ids if lease_id not in done.skipped]
                if done.left:
                    # The script reaps leases in turn up to a bound, so none of the first `done.leases` is left.
                    reaped = page.first(tried, done.leases)
                    page.moved.update(reaped)
                    page.give_back([lease_id for lease_id in tried if lease_id not in reaped])
                else:
                    page.moved.update(tried)
                if done.leases:
                    messages = max(1, done.messages // done.leases)
                    at_once = min(_MAX_LEASES, max(1, REAPED_AT_ONCE // messages))
                elif done.skipped:
                    at_once = _MAX_LEASES
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
            done = self._calls.execute(reap(keys, ids, self._tick_ms, only=only, now_ms=now_ms))
        except ServerError as error:
            if not concerns_the_call(error):
                raise
            if len(ids) > 1:
                for lease_id in ids:
                    self._reap_leases(keys, [lease_id], tick, now_ms, lone=lone)
            else:
                self._calls.execute(extend(keys, ids, ASIDE_MS, now_ms=now_ms))
                tick.set_aside += 1
                self._problems.failed(keys.queue, error, tick, lease_id=ids[0])
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
