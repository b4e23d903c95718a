"""Counts each ended message once, even if its child dies at any instruction.

Writing the one word `_COUNTED` makes the batch that the marks name count, and the resulting counts are written before
it. Afterwards the marks name no batch: a lease may be held for many batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qworker.consumer.board.counters import OUTCOMES, TaskCounters, TaskCounts
from qworker.consumer.board.leases import LeaseSlots
from qworker.consumer.board.states import MARK_BITS, Mark

__all__ = ["FAILED", "HANDLED", "Tally"]

# Words of the header: messages whose handler has ended, and how many of them failed; batches counted, and of these the
# added ones; the counts of a task after the last batch.
HANDLED, FAILED = 2, 3
_COUNTED, _ADDED, _COUNTED_AT, _COUNTS = 8, 9, 10, 11
_COUNTS_END: Final = _COUNTS + len(OUTCOMES) + 2
#: The bits of a mark beside those of its state say whether its message is counted: not (0), with the odd or even batch
#: that is being counted (1, 2), or counted (3).
_COUNTED_TAG: Final = 3 << 3
_ENDED: Final = (Mark.DONE, Mark.FAILED, Mark.RELEASED, Mark.SETTLING)


def _tag(number: int) -> int:
    """The bits beside the marks of a batch while it is counted: others than those of the batch before."""
    return (number % 2 + 1) << 3


class Tally:
    """Counts the messages of one child: in its header, in the counters of their task, and on their marks."""

    def __init__(
        self,
        memory: memoryview,
        words: memoryview[int],
        leases: LeaseSlots,
        counters: TaskCounters,
        counters_at: int,
    ) -> None:
        self._bytes = memory
        self._words = words
        self._leases = leases
        self._counters = counters
        self._counters_at = counters_at

    def add(self, task: int, counts: TaskCounts, marks_at: Sequence[int], failed: int) -> None:
        """Count messages of a task that have ended, `failed` of them with a failure, and note that on their marks."""
        words, marks = self._words, self._bytes
        number = words[_COUNTED] + 1
        tag = _tag(number)
        for at in marks_at:
            marks[at] = marks[at] & MARK_BITS | tag
        at = self._counters.outcomes_at(task)
        words[_COUNTED_AT] = at
        for outcome, amount in enumerate(counts.outcomes):
            words[_COUNTS + outcome] = words[at + outcome] + amount
        words[_COUNTS_END - 2] = words[HANDLED] + sum(counts.outcomes)
        words[_COUNTS_END - 1] = words[FAILED] + failed
        words[_COUNTED] = number
        for at in marks_at:
            marks[at] |= _COUNTED_TAG
        self._add_counted()
        words[_ADDED] = number
        self._counters.add_times(task, counts)

    def finish(self) -> None:
        """Add the batch that a dead child had counted and not added yet."""
        words = self._words
        readable = self._counters_at <= words[_COUNTED_AT] < len(words) - 64
        if words[_COUNTED] != words[_ADDED] and readable:
            self._add_counted()
            words[_ADDED] = words[_COUNTED]

    def uncounted(self, slot: int) -> list[int]:
        """Positions in a dead child's lease of messages that have ended and were not counted."""
        at, coming = self._leases.marks_at(slot), _tag(self._words[_COUNTED] + 1)
        return [
            position
            for position, byte in enumerate(bytes(self._bytes[at : at + self._leases.count(slot)]))
            if byte & MARK_BITS in _ENDED and byte & ~MARK_BITS in (0, coming)
        ]

    def _add_counted(self) -> None:
        words, at = self._words, self._words[_COUNTED_AT]
        words[at : at + len(OUTCOMES)] = words[_COUNTS : _COUNTS_END - 2]
        words[HANDLED], words[FAILED] = words[_COUNTS_END - 2], words[_COUNTS_END - 1]
