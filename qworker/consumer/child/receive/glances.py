"""Glances: one count of the lists of a hundred queues says whether polling them is worthwhile.

A poll looks at a dozen keys of each queue, a glance at two: `ready` and `suspect`, and the priorities that the last
poll found in use. A slice of the queues is polled with each round of glances, which finds priorities that came into use
since. Their messages ring a bell as all others do; only one whose token was lost has to wait for its slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qworker.engine.poll import glance

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.engine.command import Command

__all__ = ["CountedQueues", "Glances"]

_TOGETHER: Final = 100
#: Rounds in which every queue is polled once: every 20 s in an idle child.
_ROUNDS: Final = 10


class CountedQueues:
    """Queues that one glance counts."""

    __slots__ = ("_command", "_levels", "queues")

    def __init__(self, queues: Sequence[QueueState]) -> None:
        self.queues = queues
        self._levels = tuple(queue.levels for queue in queues)
        self._command = self._make()

    def command(self) -> Command[int]:
        """Return the command that counts their lists with messages."""
        levels = tuple(queue.levels for queue in self.queues)
        if levels != self._levels:
            self._levels = levels
            self._command = self._make()
        return self._command

    def _make(self) -> Command[int]:
        return glance([(queue.keys, queue.levels) for queue in self.queues])


class Glances:
    """The groups of the queues of a child, and which slice of the queues is polled next."""

    def __init__(self, queues: Sequence[QueueState]) -> None:
        self._queues = tuple(queues)
        self._slice = -(-len(queues) // _ROUNDS)
        self._next = 0
        self.groups = [
            CountedQueues(queues[first : first + _TOGETHER])
            for first in range(0, len(queues), _TOGETHER)
        ]

    def next_slice(self) -> Sequence[QueueState]:
        """Return the queues to poll in this round."""
        first = self._next
        self._next = first + self._slice if first + self._slice < len(self._queues) else 0
        return self._queues[first : first + self._slice]
