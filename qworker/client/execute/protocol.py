"""How commands reach the server, for code that works with any client."""

from __future__ import annotations

from typing import Protocol, TypeVar

from qworker.engine.command import Command

__all__ = ["Execute"]

T = TypeVar("T")


class Execute(Protocol):
    """Executes commands, as `Client.execute` does with its patience set."""

    def __call__(self, command: Command[T], /) -> T:
        """Execute one command."""
        ...
