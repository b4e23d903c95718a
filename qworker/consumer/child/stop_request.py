"""Whether a child must stop, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.notifier import Waker

__all__ = ["StopRequest"]


class StopRequest:
    """Asks a child to stop: by a call from any thread, or by its supervisor on the board."""

    def __init__(self, board: Board, notifier: Waker) -> None:
        self._board = board
        self._notifier = notifier
        self.why = ""

    def __bool__(self) -> bool:
        return bool(self.why or self._board.stop)

    def make(self, why: str) -> None:
        """Ask the child to stop; the first reason counts. From any thread."""
        if not self.why:
            self.why = why
            self._notifier.wake()
