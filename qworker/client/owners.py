"""To whom schedules belong: an app by its name, and when a worker of it was seen last.

HASH `ns:owners`: app → ms by the server's clock. Workers of an app with schedules write it when they register them and
every minute. It ends schedules that nobody removes: an app that was renamed or deleted leaves its set behind, which
fires no more `ORPHANED_MS` after its last worker was seen, and goes on when one is seen again. An app that is not in
the HASH (registered by an older version) fires for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qworker.client.commands.command import Command
from qworker.wire.keys import owners_key
from qworker.wire.numbers import whole

__all__ = ["ORPHANED_MS", "forget_owner", "note_owner", "read_owners", "same_owner"]

#: Without a worker for so long an app's schedules do not fire: 7 days.
ORPHANED_MS: Final = 7 * 24 * 3_600_000

Execute = Callable[[Command[Any]], Any]


def note_owner(execute: Execute, namespace: str, app: str, now_ms: int) -> None:
    """Note that a worker of an app was there."""
    execute(Command(None, (), ("HSET", owners_key(namespace), app, now_ms), int))


def forget_owner(execute: Execute, namespace: str, app: str) -> None:
    """Note that an app has no schedules any more."""
    execute(Command(None, (), ("HDEL", owners_key(namespace), app), int))


def read_owners(execute: Execute, namespace: str) -> dict[str, int]:
    """Read when each app was seen last, in ms; what is no time is left out."""
    found: dict[str, int] = {}
    flat: list[bytes] = execute(Command(None, (), ("HGETALL", owners_key(namespace)), list))
    for name, written in zip(flat[::2], flat[1::2], strict=True):
        seen_ms = whole(written)
        if seen_ms is not None:
            found[name.decode("utf-8", "replace")] = seen_ms
    return found


def same_owner(written: str, app: str) -> bool:
    """Say whether an app that stands in a schedule or a worker's document is this one.

    Older versions wrote there what was given to `qworker run`: `shop.py`, `shop:app`.
    """
    if written == app:
        return True
    module, _, attribute = written.partition(":")
    dotted = module.removesuffix(".py").strip("./").replace("/", ".")
    # A name without an attribute is that of the only app of its module.
    return app in (dotted, f"{dotted}:{attribute}")
