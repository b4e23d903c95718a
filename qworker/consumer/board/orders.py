"""Orders of a supervisor to its child: which tasks are paused, and which running message to cancel.

They are in the memory of the board, behind the counters; the supervisor writes, the child reads. A task is named by its
index in the manifest, as in the counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qworker.consumer.board.counters import MAX_TASKS

__all__ = ["ORDERS_BYTES", "Orders"]

# Words: the number of paused tasks; the message to cancel, 0 for none. Then its lease id (80 bytes, ended by a zero),
# then for each task since when it is paused, 0 for not paused.
_PAUSED, _CANCEL = 0, 1
_LEASE_AT: Final = 16
_SINCE_AT: Final = 96
_MAX_ID: Final = _SINCE_AT - _LEASE_AT - 1
ORDERS_BYTES: Final = _SINCE_AT + MAX_TASKS * 8


class Orders:
    """The orders of one child. Times are seconds of `boot_time()`."""

    def __init__(
        self, memory: memoryview, words: memoryview[int], floats: memoryview[float], at: int
    ) -> None:
        self._bytes = memory
        self._words = words
        self._floats = floats
        self._at = at
        #: The index of the number of paused tasks in the board's `words`, which is read for every message.
        self.paused_word = at // 8 + _PAUSED
        self._cancel_word = at // 8 + _CANCEL
        self._since = (at + _SINCE_AT) // 8

    # -- paused tasks --------------------------------------------------------------------------

    def pause(self, since: Sequence[float]) -> None:
        """Set for each task since when it is paused, 0 for not paused. Tasks beyond `MAX_TASKS` cannot be paused."""
        known = since[:MAX_TASKS]
        for number, at in enumerate(known):
            self._floats[self._since + number] = at
        # Last: from here on the child reads the times.
        self._words[self.paused_word] = sum(1 for at in known if at)

    def paused_since(self, task: int) -> float | None:
        """Since when a task is paused; None if it is not."""
        since = self._floats[self._since + task] if task < MAX_TASKS else 0.0
        return since or None

    # -- a message to cancel -------------------------------------------------------------------

    def cancel(self, lease: int, position: int, lease_id: str) -> bool:
        """Ask for a running message of a lease slot to be cancelled; False while another request is pending."""
        name = lease_id.encode()[:_MAX_ID]
        if self._words[self._cancel_word]:
            return False
        first = self._at + _LEASE_AT
        self._bytes[first : first + len(name) + 1] = name + b"\0"
        self._words[self._cancel_word] = (lease << 16) + position + 1
        return True

    def take_cancel(self) -> tuple[int, int, str] | None:
        """Take the message to cancel: lease slot, position, and lease id: the slot may have another lease by now."""
        packed = self._words[self._cancel_word]
        if not packed:
            return None
        first = self._at + _LEASE_AT
        name = bytes(self._bytes[first : first + _MAX_ID + 1]).partition(b"\0")[0]
        self._words[self._cancel_word] = 0
        return packed >> 16, (packed & 0xFFFF) - 1, name.decode("ascii", "replace")
