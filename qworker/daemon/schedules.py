"""Schedules in Redis: `ns:{queue}:schedules`, a HASH `<name>` → JSON, `<name>:fired` → last slot ms and, while an
operator pauses it, `<name>:paused` → since when, ms.

A worker writes the schedules of its app (`register`); every reaper reads all of them and fires those that are due (see
`scheduler`). So schedules fire while no worker runs, and need no separate process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from qworker.app.schedule import parse_schedule
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import (
    ORPHANED_MS,
    forget_owner,
    note_owner,
    read_owners,
    same_owner,
)
from qworker.client.namespace.queues import holding, named
from qworker.daemon.registry import Execute
from qworker.engine.command import Brief
from qworker.engine.index import announce
from qworker.engine.raw import raw, server_time
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InvalidError,
    InvalidOptionError,
    ServerError,
    server_refused,
)
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue, check_schedule
from qworker.wire.numbers import whole
from qworker.wire.schedule import FIRED, PAUSED, StoredSchedule

__all__ = [
    "ListedSchedule",
    "Registered",
    "WrittenSchedule",
    "find_scheduled",
    "list_schedules",
    "read_schedules",
    "register",
    "remove",
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


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule for people. Times in ms since 1970.

    `last_ms` None: no slot has fired. `problem` says why it cannot fire (then `next_ms` is None). `paused_ms`: since
    when it has been paused. `app_seen_ms`: when a worker of its app was seen last, None if unknown; `orphaned`: too
    long ago, so it does not fire. `running`: the message that has not ended, of a schedule whose messages must not
    overlap; `waits`: a slot waits for its end. `app` is "" for one that was added at run time.
    """

    name: str
    queue: str
    app: str
    task: str
    spec: str
    next_ms: int | None
    last_ms: int | None
    problem: str = ""
    paused_ms: int | None = None
    app_seen_ms: int | None = None
    orphaned: bool = False
    running: str = ""
    waits: bool = False

    @property
    def fires(self) -> bool:
        """Whether it fires at `next_ms`."""
        return not (self.problem or self.orphaned or self.paused_ms is not None)


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
    known = [QueueKeys(namespace, name) for name in sorted({*_queues(client, namespace), *wanted})]
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


def list_schedules(
    client: Client, namespace: str, queues: Iterable[str] | None = None
) -> list[ListedSchedule]:
    """List all schedules of a namespace, by queue and name; `queues`: those of the index by default."""
    now_ms = server_now_ms(client.execute)
    names = _queues(client, namespace) if queues is None else queues
    known = [QueueKeys(namespace, name) for name in names]
    owners = read_owners(client.execute, namespace)
    listed = []
    for keys in find_scheduled(client.execute, known):
        schedules = _of_any(client, keys)
        running = _running(client, keys, schedules)
        for name, written in sorted(schedules.items()):
            listed.append(_listed(keys.queue, name, written, owners, now_ms, running.get(name, "")))
    return listed


def remove(execute: Execute, keys: QueueKeys, names: Iterable[str]) -> int:
    """Remove schedules of a queue; returns how many there were."""
    fields = [name + part for name in names for part in (FIRED, PAUSED)]
    execute(raw("HDEL", keys.schedules, *fields, decode=int))
    return execute(raw("HDEL", keys.schedules, *names, decode=int))


def _queues(client: Client, namespace: str) -> list[str]:
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


def _of_any(client: Client, keys: QueueKeys) -> dict[str, WrittenSchedule]:
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
        for name, written in _of_any(client, keys).items()
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


def _running(client: Client, keys: QueueKeys, schedules: Iterable[str]) -> dict[str, str]:
    """Return the messages that hold the unique keys of schedules, by the schedules' names."""
    names = list(schedules)
    if not names:
        return {}
    fields = [StoredSchedule.key(name) for name in names]
    try:
        held = client.execute(raw("HMGET", keys.unique, *fields, decode=list))
    except ServerError as error:
        if not server_refused(error) and not isinstance(error, AccessDeniedError):
            raise
        return {}  # a key of another type, which `doctor` and `fsck` report
    return {
        name: value.partition(b" ")[0].decode("utf-8", "replace")
        for name, value in zip(names, held, strict=True)
        if value is not None
    }


def _listed(
    queue: str,
    name: str,
    written: WrittenSchedule,
    owners: Mapping[str, int],
    now_ms: int,
    running: str,
) -> ListedSchedule:
    fired_ms = written.fired_ms
    stored = written.stored
    if stored is None:
        return ListedSchedule(name, queue, "", "", "", None, fired_ms, "it cannot be read")
    seen_ms = owners.get(stored.app)
    next_ms, last_ms, problem, waits = None, fired_ms, "", False
    try:
        schedule = parse_schedule(stored.spec)
    except InvalidOptionError as error:
        problem = str(error)
    else:
        next_ms = schedule.next_after_ms(now_ms)
        running = "" if schedule.overlap == "allow" else running
        if running and fired_ms is not None and schedule.previous_ms(now_ms) > fired_ms:
            waits = True
        # A new schedule begins with the time of its registration, which is not a slot.
        if fired_ms is not None and schedule.previous_ms(fired_ms) != fired_ms:
            last_ms = None
    return ListedSchedule(
        name,
        queue,
        stored.app,
        stored.task,
        stored.spec,
        next_ms,
        last_ms,
        problem,
        written.paused_ms,
        seen_ms,
        seen_ms is not None and now_ms - seen_ms > ORPHANED_MS,
        running,
        waits,
    )


def _fields(execute: Execute, keys: QueueKeys) -> dict[str, bytes]:
    return execute(raw("HGETALL", keys.schedules, decode=_hash))


def _hash(reply: list[bytes]) -> dict[str, bytes]:
    return dict(zip(_texts(reply[::2]), reply[1::2], strict=True))


def _texts(reply: list[bytes]) -> list[str]:
    return [word.decode("utf-8", "replace") for word in reply]
