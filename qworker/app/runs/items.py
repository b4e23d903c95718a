"""The item of a loop that a run handles: steps that begin meanwhile belong to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from qworker.engine.command import Command

__all__ = ["Item", "OpenLoop", "current_item"]


class OpenLoop(Protocol):
    """A loop that has begun and not ended; see `qworker.app.runs.loops`."""

    name: str
    done: int
    steps: list[str]
    groups: list[str]
    item: Item | None

    @property
    def behind(self) -> bool:
        """Whether it has done more than is kept."""

    def keep(self) -> Command[int]:
        """Return the command that keeps its position."""

    def abandon(self) -> Command[Any] | None:
        """Return the command that forgets groups of calls of items that are done, if there are any."""

    def was_kept(self) -> bool:
        """Note that it is kept; returns whether there are more steps to forget."""


class Item:
    """The item that a loop has given out last, until the next is asked for. `path` begins the names of its steps."""

    __slots__ = ("groups", "inner", "path", "steps")

    def __init__(self, path: str) -> None:
        self.path = path
        #: Names of steps that have begun within it, and loops.
        self.steps: list[str] = []
        self.inner: list[OpenLoop] = []
        #: Ids of groups of calls that were gathered within it.
        self.groups: list[str] = []

    def all_steps(self) -> list[str]:
        """Names of the steps within it and its loops, some of them forgotten; takes over the groups of its loops."""
        steps = self.steps
        for loop in self.inner:
            steps += loop.steps
            self.groups += loop.groups
            if loop.item is not None:
                steps += loop.item.all_steps()
                self.groups += loop.item.groups
        return steps


#: The item that is handled in this thread or coroutine.
current_item: Final[ContextVar[Item | None]] = ContextVar("qworker_item", default=None)
