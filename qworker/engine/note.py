"""The command that keeps a short note where workers, reapers and operators meet, also on a full server.

A note is small, and what it replaces is about as large: a server at maxmemory takes it by a script, within bounds, so
that workers can report and operators can pause, drain and ask them. Otherwise it is the plain command, which needs no
script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from msgspec import structs

from qworker.engine.command import Command, Word
from qworker.engine.raw import raw
from qworker.engine.scripts import load_script
from qworker.errors import OutOfMemoryError, ServerError

__all__ = ["keep_note"]

T = TypeVar("T")


@overload
def keep_note(verb: str, key: str, *words: Word) -> Command[Any]: ...
@overload
def keep_note(verb: str, key: str, *words: Word, decode: Callable[[Any], T]) -> Command[T]: ...
def keep_note(
    verb: str, key: str, *words: Word, decode: Callable[[Any], Any] | None = None
) -> Command[Any]:
    """Make HSET, HSETNX, ZADD or RPUSH a command that a full server takes too.

    There a list expires after 30 s, and a hash or sorted set of 1,000 names takes no other.
    """
    plain: Command[Any] = raw(verb, key, *words, decode=decode or _unchanged)

    def noted(reply: Any) -> Any:
        match reply:
            case [b"OK", result]:
                return plain.decode(result)
            case [b"MANY", most]:
                raise OutOfMemoryError(
                    f"the server has reached maxmemory, and {key} has {most:,} names, as many as it takes then; "
                    "consume messages, or raise maxmemory"
                )
            case [b"BROKEN", _, kind]:
                raise ServerError(f"{key} is a {kind.decode()}, which takes no {verb}")
        raise OutOfMemoryError(
            f"the server has reached maxmemory, and a note for {key} is larger than it takes then (64 KiB); "
            "consume messages, or raise maxmemory"
        )

    on_full = Command(load_script("note"), (key,), (verb, *words), noted)
    return structs.replace(plain, on_full=on_full)


def _unchanged(reply: Any) -> Any:
    return reply
