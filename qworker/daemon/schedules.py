"""Schedules in Redis: `ns:{queue}:schedules`, a HASH `<name>` → JSON, `<name>:fired` → last slot ms and, while an
operator pauses it, `<name>:paused` → since when, ms.

A worker writes the schedules of its app (`register`); every reaper reads all of them and fires those that are due (see
`scheduler`). So schedules fire while no worker runs, and need no separate process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from qworker.client.execute.protocol import Execute
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import (
    forget_owner,
    note_owner,
    same_owner,
)
from qworker.client.namespace.queues import holding, named
from qworker.engine.command import Brief
from qworker.engine.index import announce
from qworker.engine.raw import raw, server_time
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InvalidError,
    ServerError,
    server_refused,
)
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue, check_schedule
from qworker.wire.numbers import whole
from qworker.wire.schedule import FIRED, PAUSED, StoredSchedule

__all__ = [
    "Registered",
    "WrittenSchedule",
    "find_scheduled",
    "queues_of_index",
    "read_schedules",
    "register",
    "remove",
    "schedules_of",
    "server_now_ms",
]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenSchedule:
    """A schedule and its state as its HASH holds them: `value` is the JSON. Times in ms, None if there is none."""

    value: bytes
    fired_ms: int | None
    paused_ms: int | None = None

    @property
    def stored(self) -> StoredSchedule | None:
        """The schedule; None if it cannot be read."""
        return _parsed(self.value)


@dataclass(frozen=True, slots=True)
class Registered:
    """The changes of a registration: names of schedules."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


def register(
    client: Client, namespace: str, app: str, schedules: Mapping[str, StoredSchedule]
) -> Registered:
    """Write the schedules of an app by their names, and remove all others that name it as their app.

    A schedule of another app with the same name in the same queue becomes this app's; a paused one stays paused. One
    that is new, or whose times were changed, fires from its next slot on and never for the past. Not atomic as a whole,
    but if it stops halfway you may call it again. Two versions of an app that run side by side have the schedules of
    the one that registered last. Raises `InvalidNameError` and `ServerError`. O(queues of the namespace).
    """
    wanted: dict[str, dict[str, StoredSchedule]] = {}
    for name, schedule in schedules.items():
        wanted.setdefault(check_queue(schedule.queue), {})[check_schedule(name)] = schedule
    now_ms = server_now_ms(client.execute)
    _note_seen(client, namespace, app, now_ms, bool(wanted))
    known = [
        QueueKeys(namespace, name)
        for name in sorted({*queues_of_index(client, namespace), *wanted})
    ]
    added: list[str] = []
    changed: list[str] = []
    removed: list[str] = []
    for keys in find_scheduled(client.execute, known):
        if gone := _gone(client, keys, app, wanted.get(keys.queue, {})):
            remove(client.execute, keys, gone)
            removed += gone
    for queue, of_queue in wanted.items():
        keys = QueueKeys(namespace, queue)
        values = _fields(client.execute, keys)
        for name, schedule in of_queue.items():
            value, before = schedule.encode(), values.get(name)
            stored = None if before is None else _parsed(before)
            # The slot goes first: a schedule without one would have all of the past before it.
            if stored is None or stored.times != schedule.times:
                words = ("HSET", keys.schedules, name + FIRED, now_ms)
                client.execute(raw(*words, decode=int))
            if before != value:
                client.execute(raw("HSET", keys.schedules, name, value, decode=int))
                (added if before is None else changed).append(name)
        client.briefly(Brief(announce(namespace, [queue])))
    return Registered(tuple(added), tuple(changed), tuple(removed))


def remove(execute: Execute, keys: QueueKeys, names: Iterable[str]) -> int:
    """Remove schedules of a queue; returns how many there were."""
    fields = [name + part for name in names for part in (FIRED, PAUSED)]
    execute(raw("HDEL", keys.schedules, *fields, decode=int))
    return execute(raw("HDEL", keys.schedules, *names, decode=int))


def queues_of_index(client: Client, namespace: str) -> list[str]:
    """Return the queues that the index lists; none if it holds another type, which `doctor` reports."""
    try:
        return sorted(client.run(named(namespace)))
    except BrokenQueueError as error:
        _log.error("index_broken", problem=str(error))
        return []


def find_scheduled(execute: Execute, queues: Sequence[QueueKeys]) -> list[QueueKeys]:
    """Find the queues that have schedules, as `holding` does."""
    return holding(execute, queues, lambda keys: keys.schedules)


def read_schedules(execute: Execute, keys: QueueKeys) -> dict[str, WrittenSchedule]:
    """Read the schedules of a queue, by their names."""
    stored = _fields(execute, keys)
    return {
        name: WrittenSchedule(
            value, whole(stored.get(name + FIRED)), _since_ms(stored.get(name + PAUSED))
        )
        for name, value in stored.items()
        if not name.endswith((FIRED, PAUSED))
    }


def server_now_ms(execute: Execute) -> int:
    """Read the server's clock."""
    return execute(server_time())


def _note_seen(client: Client, namespace: str, app: str, now_ms: int, has_schedules: bool) -> None:
    try:
        if has_schedules:
            note_owner(client.execute, namespace, app, now_ms)
        else:
            forget_owner(client.execute, namespace, app)
    except AccessDeniedError as error:
        # An ACL of an older version: without that key the app's schedules are never orphans.
        _log.warning("owner_not_noted", app=app, problem=str(error))


def _since_ms(written: bytes | None) -> int | None:
    """Since when a schedule has been paused; any value pauses it."""
    return None if written is None else whole(written) or 0


def schedules_of(client: Client, keys: QueueKeys) -> dict[str, WrittenSchedule]:
    """Read the schedules of any queue; one whose key holds another type has none."""
    try:
        return read_schedules(client.execute, keys)
    except ServerError as error:
        if not server_refused(error) and not isinstance(error, AccessDeniedError):
            raise
        _log.error("schedules_broken", queue=keys.queue, problem=str(error))
        return {}


def _gone(client: Client, keys: QueueKeys, app: str, wanted: Collection[str]) -> list[str]:
    return [
        name
        for name, written in schedules_of(client, keys).items()
        if name not in wanted
        and (stored := written.stored) is not None
        and stored.app  # else a program added it, and removes it
        and same_owner(stored.app, app)
    ]


def _parsed(value: bytes) -> StoredSchedule | None:
    try:
        return StoredSchedule.parse(value)
    except InvalidError:
        return None


def _fields(execute: Execute, keys: QueueKeys) -> dict[str, bytes]:
    return execute(raw("HGETALL", keys.schedules, decode=_hash))


def _hash(reply: list[bytes]) -> dict[str, bytes]:
    return dict(zip(_texts(reply[::2]), reply[1::2], strict=True))


def _texts(reply: list[bytes]) -> list[str]:
    return [word.decode("utf-8", "replace") for word in reply]
