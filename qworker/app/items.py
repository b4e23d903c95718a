"""The item of a loop that a run handles: steps that begin meanwhile belong to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from qworker.engine.command import Command

__all__ = ["Item", "OpenLoop", "current_item"]


class OpenLoop(Protocol):
    """A loop that has begun and not ended; see `qworker.app.loops`."""

    name: str
    done: int
    steps: list[str]
    item: Item | None

    @property
    def behind(self) -> bool:
        """Whether it has done more than is kept."""

    def keep(self) -> Command[int]:
        """Return the command that keeps its position."""

    def was_kept(self) -> bool:
        """Note that it is kept; returns whether more steps are to be forgotten."""


class Item:
    """The item that a loop has given out last, until the next is asked for. `path` begins the names of its steps."""

    __slots__ = ("inner", "path", "steps")

    def __init__(self, path: str) -> None:
        self.path = path
        #: Names of steps that have begun within it, and loops.
        self.steps: list[str] = []
        self.inner: list[OpenLoop] = []

    def all_steps(self) -> list[str]:
        """Names of the steps within it and within its loops, of which some may be forgotten already."""
        steps = self.steps
        for loop in self.inner:
            steps += loop.steps
            if loop.item is not None:
                steps += loop.item.all_steps()
        return steps


#: The item that is handled in this thread or coroutine.
current_item: Final[ContextVar[Item | None]] = ContextVar("qworker_item", default=None)
