"""Schedules as listings show them: when each fires next, why it does not, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qworker.app.schedule import parse_schedule
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import (
    ORPHANED_MS,
    read_owners,
)
from qworker.daemon.schedules import (
    WrittenSchedule,
    find_scheduled,
    queues_of_index,
    schedules_of,
    server_now_ms,
)
from qworker.engine.raw import raw
from qworker.errors import (
    AccessDeniedError,
    InvalidOptionError,
    ServerError,
    server_refused,
)
from qworker.wire.keys import QueueKeys
from qworker.wire.schedule import StoredSchedule

__all__ = ["ListedSchedule", "list_schedules"]


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule as listings show it. Times in ms since 1970.

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


def list_schedules(
    client: Client, namespace: str, queues: Iterable[str] | None = None
) -> list[ListedSchedule]:
    """List all schedules of a namespace, by queue and name; `queues`: those of the index by default."""
    now_ms = server_now_ms(client.execute)
    names = queues_of_index(client, namespace) if queues is None else queues
    known = [QueueKeys(namespace, name) for name in names]
    owners = read_owners(client.execute, namespace)
    listed = []
    for keys in find_scheduled(client.execute, known):
        schedules = schedules_of(client, keys)
        running = _running(client, keys, schedules)
        for name, written in sorted(schedules.items()):
            listed.append(_listed(keys.queue, name, written, owners, now_ms, running.get(name, "")))
    return listed


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
