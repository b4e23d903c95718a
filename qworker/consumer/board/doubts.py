"""Leases in doubt: their receive's reply was lost, so they may exist, or may yet be created, and no child holds them.

The child gives them back once the server answers it about their queue. One whose handlers all run for long asks for
nothing, and one that dies forgets them; its supervisor reads them here, each once.
"""

from __future__ import annotations

from typing import Final

from qworker.consumer.board.leases import LEASE_ID, LEASE_ID_BYTES

__all__ = ["DOUBTS_BYTES", "Doubts"]

#: The latest ones are kept, this many: far more than a child loses between two looks.
_MOST: Final = 64
# A word with how many have been noted so far; then for each of the latest its queue, and its id, ended by a zero.
_ID_AT: Final = 8
_ENTRY: Final = _ID_AT + LEASE_ID_BYTES + 2
DOUBTS_BYTES: Final = 8 + _MOST * _ENTRY


class Doubts:
    """The leases in doubt of one child: the child writes, the supervisor reads."""

    def __init__(self, memory: memoryview, words: memoryview[int], at: int) -> None:
        self._bytes = memory
        self._words = words
        self._at = at
        self._read = 0

    def note(self, lease_id: str, queue: int) -> None:
        """Note a lease of a queue, by its number on the board."""
        number = self._words[self._at // 8]
        base = self._base(number)
        name = lease_id.encode()
        self._words[base // 8] = queue
        self._bytes[base + _ID_AT : base + _ID_AT + len(name) + 1] = name + b"\0"
        # Last: from here on the supervisor reads it.
        self._words[self._at // 8] = number + 1

    def unread(self) -> list[tuple[str, int]]:
        """Read the leases that were noted since the last call, and the numbers of their queues."""
        number = self._words[self._at // 8]
        if number == self._read:
            return []
        first, self._read = max(self._read, number - _MOST), number
        if not 0 <= number - first <= _MOST:
            return []  # a handler has written here
        found = []
        for one in range(first, number):
            base = self._base(one)
            name = bytes(self._bytes[base + _ID_AT : base + _ENTRY]).partition(b"\0")[0]
            if LEASE_ID.fullmatch(name):
                found.append((name.decode(), self._words[base // 8]))
        return found

    def _base(self, number: int) -> int:
        return self._at + 8 + number % _MOST * _ENTRY
