"""Plans: operations without I/O, run by the sync and by the async client alike."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from qworker.client.commands.command import Command, Pause
from qworker.client.commands.sending import SendCall

__all__ = ["Plan", "server_ms"]

T = TypeVar("T")

#: Yields commands, sends and pauses, is sent what they came to, and returns the operation's result.
Plan = Generator[Command[Any] | SendCall | Pause, Any, T]


def server_ms() -> Command[int]:
    """Ask for the server's time in ms since 1970."""
    return Command(None, (), ("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)
