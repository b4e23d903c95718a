"""Schedules as they stand in Redis: `ns:{queue}:schedules`, a HASH `<name>` → JSON, `<name>:fired` → last slot ms and,
while an operator pauses it, `<name>:paused` → since when, ms.

Whoever knows an app writes its set (`register`); every reaper reads all of them and fires what is due (see
`scheduler`). So schedules go on while no worker runs, and need no process of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from qworker.app.schedule import Schedule, parse_schedule
from qworker.client.commands.command import Brief, Command
from qworker.client.commands.index import announce
from qworker.client.commands.inspecting import existing
from qworker.client.owners import (
    ORPHANED_MS,
    forget_owner,
    note_owner,
    read_owners,
    same_owner,
)
from qworker.client.registry import named
from qworker.client.sync import Client
from qworker.daemon.registry import Execute
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InvalidNameError,
    InvalidOptionError,
    ServerError,
)
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue, check_schedule, check_task
from qworker.wire.numbers import whole

__all__ = [
    "ListedSchedule",
    "NewSchedule",
    "Registered",
    "StoredSchedule",
    "WrittenSchedule",
    "decoded",
    "find_scheduled",
    "list_schedules",
    "read_schedules",
    "register",
    "remove",
    "server_now_ms",
]

_log = structlog.get_logger(__name__)

FIRED: Final = ":fired"
PAUSED: Final = ":paused"
_ASKED_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule of an app: what to send when. `body` is that of the message, in UTF-8.

    `ttl_ms` None takes the queue's, 0 is none; `max_receives` None takes the queue's. `signature` is that of all its
    messages (`Keyring.sign_schedule`): who fires them holds no key.
    """

    name: str
    schedule: Schedule
    task: str
    queue: str
    body: bytes
    priority: int = 0
    ttl_ms: int | None = None
    max_receives: int | None = None
    signature: str = ""


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON of a schedule. `spec` is text for `qworker.app.schedule.parse_schedule`; `app` names its owner."""

    app: str
    spec: str
    task: str
    queue: str
    body: str
    priority: int = 0
    ttl_ms: int | None = None
    max_receives: int | None = None
    signature: str = ""

    def tail(self, name: str) -> bytes:
        """The envelope of its messages from the flags on; `name` is the schedule's."""
        flags: dict[str, str] = {}
        if self.signature:
            flags |= {"n": name, "s": self.signature}
        if self.max_receives is not None:
            flags["m"] = str(self.max_receives)
        if self.priority:
            flags["p"] = str(self.priority)
        return tail(self.body.encode(), flags)


@dataclass(frozen=True, slots=True)
class WrittenSchedule:
    """A schedule as its hash holds it: `value` is the JSON. Times in ms, None for what is not written there."""

    value: bytes
    fired_ms: int | None
    paused_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """What a registration changed: names of schedules."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule for people. Times in ms since 1970.

    `last_ms` None: no slot has fired. `problem` says why it cannot fire (then `next_ms` is None). `paused_ms`: since
    when an operator pauses it. `app_seen_ms`: when a worker of its app was seen last, None if that is not known;
    `orphaned`: that is so long ago that it does not fire.
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

    @property
    def fires(self) -> bool:
        """Whether it fires at `next_ms`."""
        return not (self.problem or self.orphaned or self.paused_ms is not None)


def register(
    client: Client, namespace: str, app: str, schedules: Iterable[NewSchedule]
) -> Registered:
    """Write the schedules of an app, and remove those of the same app that are not among them; `app` is its name.

    A schedule of another app with the same name in the same queue becomes this app's. What an operator has paused
    stays so.
    A schedule that is new, or whose times were changed, fires from its next slot on and never for the past. Not
    atomic as a whole, and harmless where it stops halfway: call it again. Two versions of an app that run side by side
    have the schedules of the one that registered last. Raises `InvalidNameError`, `InvalidOptionError` for a name used
    twice in a queue, and `ServerError`. O(queues of the namespace).
    """
    wanted: dict[str, dict[str, bytes]] = {}
    for each in schedules:
        of_queue = wanted.setdefault(check_queue(each.queue), {})
        if check_schedule(each.name) in of_queue:
            raise InvalidOptionError(
                "schedule", f"{each.name!r} stands twice in queue {each.queue!r}", "give it a name"
            )
        of_queue[each.name] = _encoded(app, each)
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
        stored = _fields(client.execute, keys)
        for name, value in of_queue.items():
            before = stored.get(name)
            # The slot goes first: a schedule without one would have all of the past before it.
            if before is None or _times(before) != _times(value):
                words = ("HSET", keys.schedules, name + FIRED, now_ms)
                client.execute(Command(None, (), words, int))
            if before != value:
                client.execute(Command(None, (), ("HSET", keys.schedules, name, value), int))
                (added if before is None else changed).append(name)
        client.briefly(Brief(announce(namespace, [queue])))
    return Registered(tuple(added), tuple(changed), tuple(removed))


def list_schedules(client: Client, namespace: str) -> list[ListedSchedule]:
    """List all schedules of a namespace, by queue and name."""
    now_ms = server_now_ms(client.execute)
    known = [QueueKeys(namespace, name) for name in _queues(client, namespace)]
    owners = read_owners(client.execute, namespace)
    listed = []
    for keys in find_scheduled(client.execute, known):
        for name, written in sorted(_of_any(client, keys).items()):
            listed.append(_listed(keys.queue, name, written, owners, now_ms))
    return listed


def remove(execute: Execute, keys: QueueKeys, names: Iterable[str]) -> int:
    """Remove schedules of a queue; returns how many were there."""
    fields = [name + part for name in names for part in (FIRED, PAUSED)]
    execute(Command(None, (), ("HDEL", keys.schedules, *fields), int))
    return execute(Command(None, (), ("HDEL", keys.schedules, *names), int))


def _queues(client: Client, namespace: str) -> list[str]:
    """Name the queues that the index lists; none where it holds another type, which `doctor` tells."""
    try:
        return sorted(client.run(named(namespace)))
    except BrokenQueueError as error:
        _log.error("index_broken", problem=str(error))
        return []


def find_scheduled(execute: Execute, queues: Sequence[QueueKeys]) -> list[QueueKeys]:
    """Find the queues that have schedules. One call per 500 queues without, some more around each that has."""
    found: list[QueueKeys] = []
    asked = [queues[at : at + _ASKED_AT_ONCE] for at in range(0, len(queues), _ASKED_AT_ONCE)]
    while asked:
        chunk = asked.pop()
        number = execute(existing([keys.schedules for keys in chunk]))
        if number == len(chunk):
            found += chunk
        elif number:
            half = len(chunk) // 2
            asked += [chunk[:half], chunk[half:]]
    return sorted(found, key=lambda keys: keys.queue)


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
    return execute(Command(None, (), ("TIME",), _ms))


def decoded(value: bytes) -> StoredSchedule | None:
    """Read the JSON of a schedule; None for what is none."""
    try:
        stored = msgspec.json.decode(value, type=StoredSchedule)
        # It becomes the label of a metric and part of what is sent.
        check_task(stored.task)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidNameError):
        return None
    return stored


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
    """Since when a schedule is paused; whatever stands there pauses it."""
    return None if written is None else whole(written) or 0


def _encoded(app: str, new: NewSchedule) -> bytes:
    return msgspec.json.encode(
        StoredSchedule(
            app=app,
            spec=new.schedule.spec,
            task=new.task,
            queue=new.queue,
            body=new.body.decode(),
            priority=new.priority,
            ttl_ms=new.ttl_ms,
            max_receives=new.max_receives,
            signature=new.signature,
        )
    )


def _of_any(client: Client, keys: QueueKeys) -> dict[str, WrittenSchedule]:
    """Read the schedules of a queue that may be anybody's: one that holds something else has none."""
    try:
        return read_schedules(client.execute, keys)
    except ServerError as error:
        if type(error) is not ServerError and not isinstance(error, AccessDeniedError):
            raise
        _log.error("schedules_broken", queue=keys.queue, problem=str(error))
        return {}


def _gone(client: Client, keys: QueueKeys, app: str, wanted: dict[str, bytes]) -> list[str]:
    gone = []
    for name, written in _of_any(client, keys).items():
        stored = decoded(written.value)
        if stored is not None and same_owner(stored.app, app) and name not in wanted:
            gone.append(name)
    return gone


def _times(value: bytes) -> str:
    """The part of a schedule that says when: what becomes of missed slots may change without a new beginning."""
    stored = decoded(value)
    return "" if stored is None else stored.spec.rpartition(" missed=")[0]


def _listed(
    queue: str, name: str, written: WrittenSchedule, owners: Mapping[str, int], now_ms: int
) -> ListedSchedule:
    fired_ms = written.fired_ms
    stored = decoded(written.value)
    if stored is None:
        return ListedSchedule(name, queue, "", "", "", None, fired_ms, "it cannot be read")
    seen_ms = owners.get(stored.app)
    next_ms, last_ms, problem = None, fired_ms, ""
    try:
        schedule = parse_schedule(stored.spec)
    except InvalidOptionError as error:
        problem = str(error)
    else:
        next_ms = schedule.next_after_ms(now_ms)
        # At its registration a schedule notes that moment, which is no slot.
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
    )


def _fields(execute: Execute, keys: QueueKeys) -> dict[str, bytes]:
    return execute(Command(None, (), ("HGETALL", keys.schedules), _hash))


def _hash(reply: list[bytes]) -> dict[str, bytes]:
    return dict(zip(_texts(reply[::2]), reply[1::2], strict=True))


def _texts(reply: list[bytes]) -> list[str]:
    return [word.decode("utf-8", "replace") for word in reply]


def _ms(reply: Any) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
