"""Schedules as a reaper knows them: read every few seconds, without those that rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from qworker.app.schedule import Schedule, parse_schedule
from qworker.client.execute.backoff import AWAY
from qworker.client.execute.protocol import Execute
from qworker.client.namespace.owners import ORPHANED_MS, read_owners
from qworker.daemon.schedules import find_scheduled, read_schedules
from qworker.daemon.tick import Tick
from qworker.errors import (
    AccessDeniedError,
    InvalidError,
    ServerError,
    server_refused,
)
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys
from qworker.wire.schedule import StoredSchedule

__all__ = ["READ_S", "KnownSchedule", "KnownSchedules", "note"]

_log = structlog.get_logger(__name__)

#: Seconds between two reads of the schedules.
READ_S: Final = 5.0
#: A last slot this far ahead was fired by a clock that has been set back since, or was not written by us (see
#: `fire.lua`).
AHEAD_MS: Final = 3_600_000


@dataclass(slots=True)
class KnownSchedule:
    """A schedule as this reaper remembers it."""

    keys: QueueKeys
    name: str
    value: bytes
    stored: StoredSchedule
    schedule: Schedule
    fired_ms: int
    #: When to fire next: at its next slot, or at once while a slot is refused.
    due_ms: int
    #: The running message of an earlier slot that was cancelled.
    cancelled: str = ""


class KnownSchedules:
    """The schedules of all queues of a namespace."""

    def __init__(
        self,
        execute: Execute,
        throttle: LogThrottle,
        *,
        namespace: str,
        clustered: bool,
        clock: Callable[[], float],
    ) -> None:
        self._execute = execute
        self._namespace = namespace
        self._clustered = clustered
        self._clock = clock
        self._throttle = throttle
        self.jobs: dict[tuple[str, str], KnownSchedule] = {}
        #: Queues that have schedules, by name.
        self._scheduled: dict[str, QueueKeys] = {}
        #: App → when a worker of it was seen last, ms.
        self._owners: dict[str, int] = {}
        self._read_at = float("-inf")

    def due(self, now_ms: int) -> list[KnownSchedule]:
        """Return the schedules that are due, the longest due first."""
        due = [job for job in self.jobs.values() if job.due_ms <= now_ms]
        return sorted(due, key=lambda job: job.due_ms)

    @property
    def tasks(self) -> set[tuple[str, str]]:
        """The queue and task of each known schedule."""
        return {(job.keys.queue, job.stored.task) for job in self.jobs.values()}

    def forget(self) -> None:
        """Read the schedules again at the next pass."""
        self._read_at = float("-inf")

    def read(self, queues: Sequence[QueueKeys], tick: Tick) -> None:
        """Read the schedules of queues, if that is due."""
        now = self._clock()
        if now - self._read_at < READ_S:
            return
        names = {keys.queue for keys in queues}
        scheduled = {name: keys for name, keys in self._scheduled.items() if name in names}
        others = [keys for keys in queues if keys.queue not in scheduled]
        scheduled |= {keys.queue: keys for keys in find_scheduled(self._execute, others)}
        if scheduled:
            self._read_owners()
        jobs: dict[tuple[str, str], KnownSchedule] = {}
        self._scheduled = {}
        for keys in scheduled.values():
            of_queue = dict(self._jobs_of(keys, tick))
            if of_queue:
                self._scheduled[keys.queue] = keys
                jobs |= {name: job for name, job in of_queue.items() if job is not None}
        self.jobs = jobs
        self._read_at = now

    def _jobs_of(
        self, keys: QueueKeys, tick: Tick
    ) -> Iterator[tuple[tuple[str, str], KnownSchedule | None]]:
        """Yield the schedules of a queue; None for those that do not fire now."""
        try:
            stored = read_schedules(self._execute, keys)
        except ServerError as error:
            if not server_refused(error) and not isinstance(error, AccessDeniedError):
                raise
            tick.broken.add(keys.queue)
            if self._throttle.admit(f"broken {keys.queue}") is not None:
                _log.error("schedules_broken", queue=keys.queue, problem=str(error))
            return
        latest_ms = tick.now_ms + AHEAD_MS
        for name, written in stored.items():
            value, last_ms = written.value, written.fired_ms
            fired_ms = None if last_ms is None or last_ms > latest_ms else last_ms
            job = self.jobs.get((keys.queue, name))
            if job is None or job.value != value or job.fired_ms > latest_ms:
                job = self._new_job(keys, name, value, fired_ms, tick)
            elif fired_ms is not None:
                job.fired_ms = max(job.fired_ms, fired_ms)
            if job is not None:
                rests = written.paused_ms is not None or self._is_orphaned(job, tick.now_ms)
                yield (keys.queue, name), None if rests else job

    def _read_owners(self) -> None:
        try:
            self._owners = read_owners(self._execute, self._namespace)
        except ServerError as error:
            # Forbidden by an ACL of an older version, of another type, or on a node that is away: all schedules fire.
            away = self._clustered and isinstance(error, AWAY)
            if not (away or server_refused(error) or isinstance(error, AccessDeniedError)):
                raise
            self._owners = {}
            if self._throttle.admit("owners") is not None:
                _log.warning("owners_unread", problem=str(error))

    def _is_orphaned(self, job: KnownSchedule, now_ms: int) -> bool:
        seen_ms = self._owners.get(job.stored.app)
        if seen_ms is None or now_ms - seen_ms <= ORPHANED_MS:
            return False
        if (
            suppressed := self._throttle.admit(f"orphaned {job.keys.queue} {job.name}")
        ) is not None:
            days = round((now_ms - seen_ms) / 86_400_000, 1)
            fields = {"app": job.stored.app, "app_seen_days_ago": days, "held_back": suppressed}
            note("schedule_orphaned", job, **fields)
        return True

    def _new_job(
        self, keys: QueueKeys, name: str, value: bytes, fired_ms: int | None, tick: Tick
    ) -> KnownSchedule | None:
        try:
            stored = StoredSchedule.parse(value)
            schedule = parse_schedule(stored.spec)
        except InvalidError as error:
            if self._throttle.admit(f"unreadable {keys.queue} {name}") is not None:
                _log.error(
                    "schedule_unreadable", queue=keys.queue, schedule=name, problem=str(error)
                )
            return None
        # Without a valid last slot it begins now, as if it had just been registered.
        last_ms = tick.now_ms if fired_ms is None else fired_ms
        return KnownSchedule(keys, name, value, stored, schedule, last_ms, due_ms=0)


def note(event: str, job: KnownSchedule, **fields: object) -> None:
    """Log an event of a schedule."""
    expected = event in ("schedule_fired", "schedule_waits") or "running" in fields
    level = _log.info if expected else _log.warning
    level(event, schedule=job.name, queue=job.keys.queue, task=job.stored.task, **fields)
