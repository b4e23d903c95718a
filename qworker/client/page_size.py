"""Page sizes: as many messages as make about 1 MiB, since other calls wait for the reply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["PageSize"]

#: Bytes of a reply; one message may be larger.
_BYTES: Final = 2**20
#: Messages of the first page, whose sizes are unknown; each page may have eight times the messages of the last.
_FIRST: Final = 4
_GROWTH: Final = 8


class PageSize:
    """The number of messages for the next page, from 1 to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.number = min(_FIRST, most)

    def saw(self, sizes: Iterable[int]) -> None:
        """Learn from the sizes of the messages of a page, in bytes."""
        known = [*sizes]
        if known:
            fit = _BYTES * len(known) // max(1, sum(known))
            self.number = max(1, min(fit, self.number * _GROWTH, self._most))

    def limit(self, left: int) -> int:
        """Return the size of the next page if `left` messages are wanted."""
        return min(self.number, left)
