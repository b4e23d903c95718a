"""Which queues a pass looks at: where there are many, those that have been idle for a while less often.

A look at an idle queue costs a server a microsecond or two, and each `qworker run` has a reaper: what 100,000 queues
cost then is a part of a core for each. So idle queues share what reapers may spend on them, up to a longest pause that
holds for each reaper by itself: nothing depends on what the others do. With few queues there is no pause at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from qworker.client.commands.command import Command
from qworker.client.commands.reaping import holds_times
from qworker.wire.keys import QueueKeys

__all__ = ["IDLE_AFTER_S", "LONGEST_PAUSE_S", "Attention", "Group"]

#: Looks at idle queues per second, of all reapers together, from which on there are pauses.
_LOOKS_PER_S: Final = 20_000
#: The most seconds for which a reaper does not look at an idle queue; a pass comes within a tick of that.
LONGEST_PAUSE_S: Final = 5.0
#: Seconds for which nothing was found in a queue before it counts as idle.
IDLE_AFTER_S: Final = 60.0
#: Times are spread by so much of the pause, so that looks do not fall into one pass.
_SPREAD: Final = 0.2


class Group:
    """Some queues that are asked about together."""

    __slots__ = ("active_until", "looked_at", "looks", "next_at", "question", "queues")

    def __init__(self, queues: Sequence[QueueKeys]) -> None:
        self.queues = queues
        #: Asks how many sets of delayed messages and of leases these queues have.
        self.question: Command[int] = holds_times(queues)
        #: How often it was looked at (from any number on, so that groups differ), when last, and when next.
        self.looks = 0
        self.looked_at = self.next_at = float("-inf")
        self.active_until = float("-inf")


class Attention:
    """When to look at which queues, in groups of neighbours."""

    def __init__(
        self,
        tick_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.groups: list[Group] = []
        self._of: Sequence[QueueKeys] = ()
        self._by_name: dict[str, Group] = {}
        self._tick_s = tick_ms / 1000
        self._clock = clock
        self._jitter = jitter
        self._pause_s = 0.0
        #: When the last pass had looked.
        self._passed_at = float("-inf")

    def due(self, queues: Sequence[QueueKeys], together: int, reapers: int) -> list[Group]:
        """Return the groups that a pass begun now has to look at; tell `looked` then, and `active` what was found."""
        if queues is not self._of:
            self._regroup(queues, together)
        now = self._clock()
        pause_s = min(LONGEST_PAUSE_S, len(queues) * reapers / _LOOKS_PER_S)
        self._pause_s = pause_s if pause_s > self._tick_s else 0.0
        chosen = []
        for group in self.groups:
            if not self._pause_s or group.next_at <= now or group.active_until > now:
                group.looks += 1
                chosen.append(group)
        return chosen

    def looked(self, groups: Sequence[Group]) -> dict[str, int]:
        """Note that groups of `due` have been looked at.

        Returns, per queue that was left alone for longer than a tick on purpose, for how many ms. Nothing where the
        reaper itself was late, or the server: then there was a gap.
        """
        now, paused = self._clock(), dict[str, int]()
        late = now - self._passed_at > max(3 * self._tick_s, 2.0)
        self._passed_at = now
        for group in groups:
            away_s = now - group.looked_at
            if self._pause_s and not late and self._tick_s < away_s < float("inf"):
                away_ms = int(1000 * min(away_s, self._pause_s + self._tick_s))
                paused.update((keys.queue, away_ms) for keys in group.queues)
            spread = 1.0 if group.looked_at == float("-inf") else _SPREAD
            group.looked_at = now
            group.next_at = now + self._pause_s * (1 - spread * self._jitter())
        return paused

    def active(self, queue: str) -> None:
        """Look at a queue at each pass from now on, until nothing has been found in it for a minute."""
        group = self._by_name.get(queue)
        if group is not None:
            group.active_until = self._clock() + IDLE_AFTER_S

    def _regroup(self, queues: Sequence[QueueKeys], together: int) -> None:
        """Make the groups anew; a queue that is new is looked at in this pass."""
        before, groups = self._by_name, list[Group]()
        by_name: dict[str, Group] = {}
        for at in range(0, len(queues), together):
            group = Group(queues[at : at + together])
            group.looks = len(groups)
            olds = [before.get(keys.queue) for keys in group.queues]
            known = [old for old in olds if old is not None]
            if len(known) == len(olds):
                group.looks = known[0].looks
                group.looked_at = min(old.looked_at for old in known)
                group.next_at = min(old.next_at for old in known)
            if known:
                group.active_until = max(old.active_until for old in known)
            by_name.update((keys.queue, group) for keys in group.queues)
            groups.append(group)
        self._of, self.groups, self._by_name = queues, groups, by_name
