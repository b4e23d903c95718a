"""Which queues a pass checks: among many queues, idle ones are checked less often.

Checking an idle queue costs the server a microsecond or two, and each `qworker run` has a reaper: with 100,000 queues
each reaper would take a part of a core. So all reapers together have a budget for idle queues, up to a longest pause
that each reaper keeps for itself, independent of the others. With few queues there is no pause.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from qworker.engine.command import Command
from qworker.engine.reap import holds_times
from qworker.wire.keys import QueueKeys

__all__ = ["IDLE_AFTER_S", "LONGEST_PAUSE_S", "Attention", "CheckedQueues"]

#: Checks of idle queues per second, of all reapers together; beyond that there are pauses.
_CHECKS_PER_S: Final = 20_000
#: The longest pause between two checks of an idle queue; the next pass comes within a tick of it.
LONGEST_PAUSE_S: Final = 5.0
#: A queue is idle when it has held nothing with a time for this many seconds.
IDLE_AFTER_S: Final = 60.0
#: Times are spread by this part of the pause, so that checks do not fall into one pass.
_SPREAD: Final = 0.2


class CheckedQueues:
    """Queues that one command asks about."""

    __slots__ = ("active_until", "checked_at", "checks", "next_at", "question", "queues")

    def __init__(self, queues: Sequence[QueueKeys]) -> None:
        self.queues = queues
        #: Asks how many sets of delayed messages and of leases these queues have.
        self.question: Command[int] = holds_times(queues)
        #: How often it was checked (counted from different numbers, so that groups differ), when last, and when next.
        self.checks = 0
        self.checked_at = self.next_at = float("-inf")
        self.active_until = float("-inf")


class Attention:
    """When to check which queues, in groups of neighbours."""

    def __init__(
        self,
        tick_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.groups: list[CheckedQueues] = []
        self._queues: Sequence[QueueKeys] = ()
        self._by_name: dict[str, CheckedQueues] = {}
        self._tick_s = tick_ms / 1000
        self._clock = clock
        self._jitter = jitter
        self._pause_s = 0.0
        #: When the last pass had made its checks.
        self._passed_at = float("-inf")

    def due(self, queues: Sequence[QueueKeys], together: int, reapers: int) -> list[CheckedQueues]:
        """Return the groups that a pass must check now.

        Call `checked` afterwards, and `active` for queues that are not idle.
        """
        if queues is not self._queues:
            self._regroup(queues, together)
        now = self._clock()
        pause_s = min(LONGEST_PAUSE_S, len(queues) * reapers / _CHECKS_PER_S)
        self._pause_s = pause_s if pause_s > self._tick_s else 0.0
        chosen = []
        for group in self.groups:
            if not self._pause_s or group.next_at <= now or group.active_until > now:
                group.checks += 1
                chosen.append(group)
        return chosen

    def checked(self, groups: Sequence[CheckedQueues]) -> dict[str, int]:
        """Note that groups of `due` have been checked.

        Returns the queues that were left alone for longer than a tick on purpose, and for how many ms. Empty if the
        reaper or the server was late: that is a gap, not a pause.
        """
        now, paused = self._clock(), dict[str, int]()
        late = now - self._passed_at > max(3 * self._tick_s, 2.0)
        self._passed_at = now
        for group in groups:
            away_s = now - group.checked_at
            if self._pause_s and not late and self._tick_s < away_s < float("inf"):
                away_ms = int(1000 * min(away_s, self._pause_s + self._tick_s))
                paused.update((keys.queue, away_ms) for keys in group.queues)
            spread = 1.0 if group.checked_at == float("-inf") else _SPREAD
            group.checked_at = now
            group.next_at = now + self._pause_s * (1 - spread * self._jitter())
        return paused

    def active(self, queue: str) -> None:
        """Check a queue at every pass from now on, until it has been idle for a minute."""
        group = self._by_name.get(queue)
        if group is not None:
            group.active_until = self._clock() + IDLE_AFTER_S

    def _regroup(self, queues: Sequence[QueueKeys], together: int) -> None:
        """Make new groups; a new queue is checked in this pass."""
        before, groups = self._by_name, list[CheckedQueues]()
        by_name: dict[str, CheckedQueues] = {}
        for at in range(0, len(queues), together):
            group = CheckedQueues(queues[at : at + together])
            group.checks = len(groups)
            known = [before[keys.queue] for keys in group.queues if keys.queue in before]
            if len(known) == len(group.queues):
                group.checks = known[0].checks
                group.checked_at = min(old.checked_at for old in known)
                group.next_at = min(old.next_at for old in known)
            if known:
                group.active_until = max(old.active_until for old in known)
            by_name.update((keys.queue, group) for keys in group.queues)
            groups.append(group)
        self._queues, self.groups, self._by_name = queues, groups, by_name
