"""When a child of a burst ends: once no child of its worker has anything left to do.

A child that finds nothing says so on its board, and checks again now and then: acks of its peers may create new
messages. The supervisor ends the burst when all children say so at the same time. A single child ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board

__all__ = ["BurstEnd"]

#: Seconds between two checks, the first of which come sooner.
_FIRST_S: Final = 0.05
_LONGEST_S: Final = 1.0


class BurstEnd:
    """Says what a child without work does next. `is_settled`: nothing that it has ended is still on its way."""

    def __init__(self, board: Board, is_settled: Callable[[], bool]) -> None:
        self._board = board
        self._is_settled = is_settled
        #: All queues were checked, and nothing has ended since.
        self._checked = False
        self._check_again_at = 0.0
        self._pause_s = _FIRST_S

    def works(self) -> None:
        """Note that the child has work, or had until now."""
        self.asks()
        self._checked, self._pause_s = False, _FIRST_S

    def asks(self) -> None:
        """Note that the child may get a message."""
        if self._board.quiet % 2:
            self._board.quiet += 1

    def may_end(self) -> bool:
        """Whether the burst is over. Call it while the child has nothing to do."""
        if not self._is_settled():
            self.works()
            return False
        if not self._checked:
            return False
        if self._board.peers <= 1:
            return True
        if not self._board.quiet % 2:
            self._board.quiet += 1
            self._check_again_at = monotonic() + self._pause_s
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s)
        return self._board.over != 0

    def is_to_check(self) -> bool:
        """Whether the child should check all queues now, for the first time or again."""
        if not self._is_settled() or (self._checked and monotonic() < self._check_again_at):
            return False
        self.asks()
        self._checked = True
        return True
