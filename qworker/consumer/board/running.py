"""The running slots of a board: one per handler that may run at a time."""

from __future__ import annotations

from typing import Final

from qworker.consumer.board.clock import MAX_BOOT_S
from qworker.consumer.board.leases import MAX_LEASE
from qworker.consumer.board.states import RunningView

__all__ = ["RUNNING_WORDS", "RunningSlots"]

#: Words of a slot: its message (0 while no handler runs), task, start, limit.
RUNNING_WORDS: Final = 4


class RunningSlots:
    """The running handlers of one child. The child writes a slot, the supervisor copies it."""

    def __init__(
        self,
        words: memoryview[int],
        floats: memoryview[float],
        at: int,
        number: int,
        *,
        leases: int,
    ) -> None:
        self._words = words
        self._floats = floats
        self._at = at
        self._number = number
        self._leases = leases
        #: Whether a slot was read that no child writes.
        self.spoiled = False

    def begin(
        self, slot: int, lease: int, position: int, task: int, now: float, limit: float
    ) -> None:
        """Note that a handler begins; it must end by `limit`, 0 for no limit."""
        at = self._at + slot * RUNNING_WORDS
        self._words[at + 1] = task
        self._floats[at + 2] = now
        self._floats[at + 3] = limit
        # Last, and never 0: from here on the supervisor watches the slot.
        self._words[at] = (lease << 16) + position + 1

    def end(self, slot: int) -> None:
        """Note that the handler of a slot has ended."""
        self._words[self.word(slot)] = 0

    def word(self, slot: int) -> int:
        """The index in the board's `words` of the word that is 0 while no handler runs in the slot."""
        return self._at + slot * RUNNING_WORDS

    def views(self) -> list[RunningView]:
        """Copy the slots in which a handler runs."""
        views = []
        for slot in range(self._number):
            at = self._at + slot * RUNNING_WORDS
            packed = self._words[at]
            if not packed:
                continue
            lease, position = packed >> 16, (packed & 0xFFFF) - 1
            started = self._floats[at + 2]
            if lease < self._leases and 0 <= position < MAX_LEASE and 0 <= started <= MAX_BOOT_S:
                task, limit = self._words[at + 1], self._floats[at + 3]
                views.append(RunningView(slot, lease, position, task, started, limit))
            else:
                self.spoiled = True
        return views
