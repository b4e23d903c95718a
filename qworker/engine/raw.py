"""Plain Redis commands as command values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from qworker.engine.command import Command, PerQueue, Word
from qworker.store.nodes import Address

__all__ = ["raw", "server_info", "server_time"]

T = TypeVar("T")


class RawOptions(TypedDict, total=False):
    """Fields of `Command` that plain commands use."""

    then: tuple[Word, ...]
    node: Address | None
    per_queue: Callable[[], PerQueue[Any]] | None
    blocks_s: float
    awaits_move: bool


@overload
def raw(*words: Word, **options: Unpack[RawOptions]) -> Command[Any]: ...
@overload
def raw(*words: Word, decode: Callable[[Any], T], **options: Unpack[RawOptions]) -> Command[T]: ...
def raw(
    *words: Word, decode: Callable[[Any], Any] | None = None, **options: Unpack[RawOptions]
) -> Command[Any]:
    """Make a plain command. `decode` turns the reply into the result; by default the reply is the result."""
    return Command(None, (), words, _unchanged if decode is None else decode, **options)


def server_time() -> Command[int]:
    """Make the command that reads the server's clock, in ms since 1970."""
    return raw("TIME", decode=milliseconds)


def server_info(*sections: str, node: Address | None = None) -> Command[dict[str, str]]:
    """Make the command that reads sections of INFO, as field → value."""
    return raw("INFO", *sections, decode=_fields, node=node)


def milliseconds(reply: list[bytes]) -> int:
    """Read the reply of TIME."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000


def _fields(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _unchanged(reply: Any) -> Any:
    return reply
