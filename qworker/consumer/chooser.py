"""Which queues a child receives from next: those known to have messages, strictly in their order or by weight."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from qworker.client.commands.receiving import PAUSED

if TYPE_CHECKING:
    from qworker.consumer.pace import QueuePace

__all__ = ["QueueChooser"]


class QueueChooser:
    """Knows of each queue whether it may have messages. What it does costs O(queues that have some), not O(queues).

    `weighted`: queues are tried in random order by weight, else in the order in which they are given. Shards of one
    queue take turns.
    """

    def __init__(self, queues: Sequence[QueuePace], *, weighted: bool) -> None:
        self.queues = list(queues)
        self._weighted = weighted
        self._ranks = {
            name: rank for rank, name in enumerate(dict.fromkeys(q.name for q in queues))
        }
        self._filled: dict[str, QueuePace] = {}
        self._suspected: dict[str, QueuePace] = {}
        self._broken_until: dict[str, float] = {}
        #: Of each shard when its last turn was; counts receives.
        self._turns: dict[str, int] = {}
        self._turn = 0

    @property
    def any_filled(self) -> bool:
        """Whether any queue may have ready messages."""
        return bool(self._filled)

    def fill(self, queue: QueuePace) -> None:
        """Note that a queue may have ready messages."""
        self._filled[queue.place] = queue

    def drain(self, queue: QueuePace) -> None:
        """Note that a queue has no ready message."""
        self._filled.pop(queue.place, None)

    def suspect(self, queue: QueuePace, suspects: int) -> None:
        """Note how many suspects a queue has."""
        queue.suspects = suspects
        if suspects:
            self._suspected[queue.place] = queue
        else:
            self._suspected.pop(queue.place, None)

    def leave_alone(self, queue: QueuePace, until: float) -> bool:
        """Ask a broken queue for nothing until then; returns whether that is new since it was last mended."""
        new = queue.place not in self._broken_until
        self._broken_until[queue.place] = until
        return new

    def mend(self, queue: QueuePace) -> None:
        """Note that a queue has answered."""
        self._broken_until.pop(queue.place, None)

    def is_usable(self, queue: QueuePace, now: float) -> bool:
        """Whether a queue is not left alone as broken."""
        return self._broken_until.get(queue.place, 0.0) <= now

    def usable(self, now: float, queues: Sequence[QueuePace] | None = None) -> list[QueuePace]:
        """The queues (of these, or all) that are not left alone, in the order in which they are preferred."""
        found = self.queues if queues is None else queues
        if self._broken_until:
            found = [queue for queue in found if self.is_usable(queue, now)]
        return sorted(found, key=_draw) if self._weighted and len(found) > 1 else list(found)

    def candidates(
        self, now: float, *, idle: bool, without: Collection[str] = ()
    ) -> list[QueuePace]:
        """The queues that may have something, best first. Suspects count only for an idle child.

        `without`: places to leave out.
        """
        found = dict(self._filled)
        if idle:
            found.update(
                (place, queue)
                for place, queue in self._suspected.items()
                if queue.hint_ms != PAUSED
            )
        if not found:
            return []
        usable = [
            queue
            for place, queue in found.items()
            if place not in without and self.is_usable(queue, now)
        ]
        if len(usable) > 1:
            usable.sort(key=_draw if self._weighted else self._order)
        return usable

    def pass_turn(self, queue: QueuePace) -> None:
        """Let the other shards of a queue have their turn before this one."""
        self._turn += 1
        self._turns[queue.place] = self._turn

    def _order(self, queue: QueuePace) -> tuple[int, int, int]:
        return self._ranks[queue.name], self._turns.get(queue.place, 0), queue.index


def _draw(queue: QueuePace) -> float:
    """Draw a number by which sorting is a draw by weight (Efraimidis and Spirakis)."""
    return -math.pow(random.random(), 1 / queue.weight)  # noqa: S311 - a share of work, not a secret
