"""Which queues a child receives from next: those known to have messages, strictly in their order or by weight."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from qworker.engine.receive import PAUSED

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState

__all__ = ["QueueChooser"]


class QueueChooser:
    """Knows which queues may have messages. A choice costs O(queues that have some), not O(queues).

    `weighted`: queues are tried in random order by weight, else in the order given. The shards of a queue take turns.
    """

    def __init__(self, queues: Sequence[QueueState], *, weighted: bool) -> None:
        self.queues = list(queues)
        self.single = len(queues) == 1
        self._weighted = weighted
        names = dict.fromkeys(queue.name for queue in queues)
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._ready: dict[str, QueueState] = {}
        self._with_suspects: dict[str, QueueState] = {}
        self._broken_until: dict[str, float] = {}
        #: By shard, the number of the receive that was its last turn.
        self._turns: dict[str, int] = {}
        self._turn = 0

    @property
    def any_ready(self) -> bool:
        """Whether any queue may have ready messages."""
        return bool(self._ready)

    def note_ready(self, queue: QueueState) -> None:
        """Note that a queue may have ready messages."""
        self._ready[queue.shard] = queue

    def note_empty(self, queue: QueueState) -> None:
        """Note that a queue has no ready message."""
        self._ready.pop(queue.shard, None)

    def note_suspects(self, queue: QueueState, suspects: int) -> None:
        """Note how many suspects a queue has."""
        queue.suspects = suspects
        if suspects:
            self._with_suspects[queue.shard] = queue
        else:
            self._with_suspects.pop(queue.shard, None)

    def leave_alone(self, queue: QueueState, until: float) -> bool:
        """Use a broken queue no more until then; returns whether it has answered since it was last left alone."""
        is_new = queue.shard not in self._broken_until
        self._broken_until[queue.shard] = until
        return is_new

    def answered(self, queue: QueueState) -> None:
        """Note that a queue is not broken any more."""
        self._broken_until.pop(queue.shard, None)

    def usable(self, now: float, queues: Sequence[QueueState] | None = None) -> list[QueueState]:
        """The queues (of these, or all) that are not left alone, best first."""
        usable = self.queues if queues is None else queues
        if self._broken_until:
            usable = [queue for queue in usable if self._is_usable(queue, now)]
        return sorted(usable, key=_draw) if self._weighted and len(usable) > 1 else list(usable)

    def candidates(
        self, now: float, *, idle: bool, without: Collection[str] = ()
    ) -> list[QueueState]:
        """The queues that may have something, best first. Suspects count only for an idle child.

        `without`: shards to leave out.
        """
        known = dict(self._ready)
        if idle:
            known.update(
                (shard, queue)
                for shard, queue in self._with_suspects.items()
                if queue.hint_ms != PAUSED
            )
        if not known:
            return []
        usable = [
            queue
            for shard, queue in known.items()
            if shard not in without and self._is_usable(queue, now)
        ]
        if len(usable) > 1:
            usable.sort(key=_draw if self._weighted else self._order)
        return usable

    def pass_turn(self, queue: QueueState) -> None:
        """Give the other shards of a queue their turn before this one."""
        self._turn += 1
        self._turns[queue.shard] = self._turn

    def _is_usable(self, queue: QueueState, now: float) -> bool:
        return self._broken_until.get(queue.shard, 0.0) <= now

    def _order(self, queue: QueueState) -> tuple[int, int, int]:
        return self._ranks[queue.name], self._turns.get(queue.shard, 0), queue.index


def _draw(queue: QueueState) -> float:
    """Draw a number by which sorting is a draw by weight (Efraimidis and Spirakis)."""
    return -math.pow(random.random(), 1 / queue.weight)  # noqa: S311 - a share of work, not a secret
