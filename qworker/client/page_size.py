"""How much of a queue is read at once: as many messages as make about 1 MiB, for others wait for the reply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["PageSize"]

#: Bytes of a reply; one message may be larger.
_BYTES: Final = 2**20
#: Messages of the first page, when nothing is known of their sizes; then up to so many times the number before.
_FIRST: Final = 4
_GROWTH: Final = 8


class PageSize:
    """The number of messages to ask for next, from 1 to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.number = min(_FIRST, most)

    def saw(self, sizes: Iterable[int]) -> None:
        """Learn from the sizes of the messages of a page, in bytes."""
        seen = [*sizes]
        if seen:
            fit = _BYTES * len(seen) // max(1, sum(seen))
            self.number = max(1, min(fit, self.number * _GROWTH, self._most))

    def limit(self, left: int) -> int:
        """The number to ask for where `left` messages are wanted."""
        return min(self.number, left)
