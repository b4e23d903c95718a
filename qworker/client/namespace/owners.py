"""The owners of schedules: apps by name, and when a worker of each was last seen.

HASH `ns:owners`: app → ms by the server's clock. Workers of an app with schedules write it when they register them and
every minute. It ends orphaned schedules: those of a renamed or deleted app stop firing `ORPHANED_MS` after its last
worker was seen, and resume when one is seen again. An app that is not in the HASH (registered by an older version)
fires forever.
"""

from __future__ import annotations

from typing import Final

from qworker.client.execute.protocol import Execute
from qworker.engine.note import keep_note
from qworker.engine.raw import raw
from qworker.wire.keys import owners_key
from qworker.wire.numbers import whole

__all__ = ["ORPHANED_MS", "forget_owner", "note_owner", "read_owners", "same_owner"]

#: After 7 days without a worker an app's schedules do not fire.
ORPHANED_MS: Final = 7 * 24 * 3_600_000


def note_owner(execute: Execute, namespace: str, app: str, now_ms: int) -> None:
    """Store when a worker of an app was seen."""
    execute(keep_note("HSET", owners_key(namespace), app, now_ms, decode=int))


def forget_owner(execute: Execute, namespace: str, app: str) -> None:
    """Remove an app that has no more schedules."""
    execute(raw("HDEL", owners_key(namespace), app, decode=int))


def read_owners(execute: Execute, namespace: str) -> dict[str, int]:
    """Read when each app was last seen, in ms; leaves out invalid times."""
    owners: dict[str, int] = {}
    flat: list[bytes] = execute(raw("HGETALL", owners_key(namespace), decode=list))
    for name, written in zip(flat[::2], flat[1::2], strict=True):
        seen_ms = whole(written)
        if seen_ms is not None:
            owners[name.decode("utf-8", "replace")] = seen_ms
    return owners


def same_owner(written: str, app: str) -> bool:
    """Say whether the app named in a schedule or a worker's document is this one.

    Older versions wrote the argument of `qworker run`: `shop.py`, `shop:app`.
    """
    if written == app:
        return True
    module, _, attribute = written.partition(":")
    dotted = module.removesuffix(".py").strip("./").replace("/", ".")
    # A name without an attribute means the only app of its module.
    return app in (dotted, f"{dotted}:{attribute}")
