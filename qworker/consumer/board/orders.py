"""Orders of a supervisor to its child: which tasks are paused, and which running messages are cancelled.

They are in the memory of the board, behind the counters; the supervisor writes, the child reads. A task is named by its
index in the manifest, as in the counters. A message is named by the number of its lease, which a child uses once, and
its position there: a name never means another message, however late it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qworker.consumer.board.counters import MAX_TASKS
from qworker.wire.ids import lease_number

__all__ = ["MAX_CANCELLED", "ORDERS_BYTES", "Orders"]

#: The latest cancelled messages, this many, are kept: a child runs no more handlers at a time.
MAX_CANCELLED: Final = 1024

# Words: the number of paused tasks; the number of messages cancelled so far, names of the latest ones, and since when;
# then for each task since when it is paused, 0 for not paused.
_PAUSED, _CANCELLED = 0, 1
_NAMES: Final = 2
_TIMES: Final = _NAMES + MAX_CANCELLED
_SINCE: Final = _TIMES + MAX_CANCELLED
ORDERS_BYTES: Final = (_SINCE + MAX_TASKS) * 8
_MAX_NUMBER: Final = 2**47


class Orders:
    """The orders of one child. Times are seconds of `boot_time()`."""

    def __init__(self, words: memoryview[int], floats: memoryview[float], at: int) -> None:
        self._words = words
        self._floats = floats
        first = at // 8
        #: The index of the number of paused tasks in the board's `words`, which is read for every message.
        self.paused_word = first + _PAUSED
        self._cancelled_word = first + _CANCELLED
        self._names = first + _NAMES
        self._times = first + _TIMES
        self._since = first + _SINCE

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

    # -- cancelled messages --------------------------------------------------------------------

    def cancel(self, lease_id: str, position: int, now: float) -> None:
        """Note that a running message was cancelled; a repetition changes nothing."""
        name = _name(lease_id, position)
        if name in self._cancelled():
            return
        number = self._words[self._cancelled_word]
        self._floats[self._times + number % MAX_CANCELLED] = now
        self._words[self._names + number % MAX_CANCELLED] = name
        # Last: from here on the child reads the name.
        self._words[self._cancelled_word] = number + 1

    @property
    def any_cancelled(self) -> bool:
        """Whether a message was ever cancelled."""
        return self._words[self._cancelled_word] != 0

    def cancelled_at(self, lease_id: str, position: int) -> float | None:
        """When a message was cancelled; None if it was not."""
        if not self.any_cancelled:
            return None
        names, name = self._cancelled(), _name(lease_id, position)
        return self._floats[self._times + names.index(name)] if name in names else None

    def _cancelled(self) -> list[int]:
        number = min(self._words[self._cancelled_word], MAX_CANCELLED)
        return self._words[self._names : self._names + number].tolist()


def _name(lease_id: str, position: int) -> int:
    return (lease_number(lease_id) % _MAX_NUMBER << 16) + position + 1
