"""Fires the schedules that are due, the part of a reaper's pass that sends.

Every slot is one call of `fire.lua`, which compares it with the last slot that fired: any number of reapers fire it
once. A reaper remembers schedules only to save calls for those that are not due.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from qworker.app.schedule import Schedule, parse_schedule
from qworker.client.namespace.owners import ORPHANED_MS, read_owners
from qworker.daemon.registry import AWAY, Execute
from qworker.daemon.schedules import find_scheduled, read_schedules
from qworker.daemon.tick import Tick
from qworker.engine.fire import Fired, Rule, fire, skip
from qworker.engine.raw import raw
from qworker.errors import (
    AccessDeniedError,
    InvalidError,
    OutOfMemoryError,
    RefusedError,
    ServerError,
    concerns_the_call,
    server_refused,
)
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items
from qworker.wire.schedule import StoredSchedule

__all__ = ["MOST_MISSED", "ON_TIME_MS", "Scheduler", "due_slots"]

_log = structlog.get_logger(__name__)

#: Seconds between two reads of the schedules.
READ_S: Final = 5.0
#: Missed slots that `missed=all` fires at most; older ones are dropped.
MOST_MISSED: Final = 100
#: With `missed=skip` a slot fires up to this late: a daemon may just have been replaced.
ON_TIME_MS: Final = 60_000
#: A last slot this far ahead was fired by a clock that has been set back since, or was not written by us (see
#: `fire.lua`).
AHEAD_MS: Final = 3_600_000
#: How often a slot checks whether the earlier message that it waits for has ended.
LOOK_MS: Final = 1000


def due_slots(schedule: Schedule, fired_ms: int, now_ms: int) -> tuple[list[int], int | None]:
    """Return the slots after `fired_ms` to fire at `now_ms`, in order, and the slot up to which all are skipped.

    At most `MOST_MISSED` slots. O(slots).
    """
    last_ms = schedule.previous_ms(now_ms)
    if last_ms <= fired_ms:
        return [], None
    if schedule.missed == "skip" and now_ms - last_ms > ON_TIME_MS:
        return [], last_ms
    slots = [last_ms]
    while schedule.missed == "all" and len(slots) < MOST_MISSED:
        before_ms = schedule.previous_ms(slots[-1] - 1)
        if before_ms <= fired_ms:
            break
        slots.append(before_ms)
    return slots[::-1], None


def _random_up_to(most: int) -> int:
    return random.randint(0, most)  # noqa: S311 - spreading, not secrecy


@dataclass(slots=True)
class _Job:
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


class Scheduler:
    """Fires the schedules of all queues of a namespace."""

    def __init__(
        self,
        execute: Execute,
        ids: IdSource,
        *,
        namespace: str,
        clustered: bool = False,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[int], int] = _random_up_to,
    ) -> None:
        self._execute = execute
        self._ids = ids
        self._jitter = jitter
        self._namespace = namespace
        self._clustered = clustered
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self._jobs: dict[tuple[str, str], _Job] = {}
        #: Queues that have schedules, by name.
        self._scheduled: dict[str, QueueKeys] = {}
        #: App → when a worker of it was seen last, ms.
        self._owners: dict[str, int] = {}
        self._read_at = float("-inf")

    def fire(
        self,
        queues: Sequence[QueueKeys],
        tick: Tick,
        deadline: float,
        now_ms: int | None = None,
    ) -> None:
        """Fire the slots due at the time of the pass, until `deadline` by the clock, and note when the next is due.

        A queue that refuses (paused, full) or a full server keeps its slots for the next pass, and is logged.
        """
        self._read(queues, tick)
        for job in self.due(tick.now_ms):
            if self._clock() >= deadline:
                tick.more = True
                break
            try:
                self._fire(job, tick, now_ms)
            except (RefusedError, InvalidError, ServerError) as error:
                # A node of a Cluster that is away delays its own schedules, and no others.
                away = self._clustered and isinstance(error, AWAY)
                if not (away or _keeps_the_slot(error)):
                    raise
                self._refused(job, error, tick)
        for job in self._jobs.values():
            tick.wake_at(job.due_ms)

    def due(self, now_ms: int) -> list[_Job]:
        """Return the schedules that are due, the longest due first."""
        due = [job for job in self._jobs.values() if job.due_ms <= now_ms]
        return sorted(due, key=lambda job: job.due_ms)

    @property
    def tasks(self) -> set[tuple[str, str]]:
        """The queue and task of each known schedule."""
        return {(job.keys.queue, job.stored.task) for job in self._jobs.values()}

    def forget(self) -> None:
        """Read the schedules again at the next pass."""
        self._read_at = float("-inf")

    # -- reading -------------------------------------------------------------------------------

    def _read(self, queues: Sequence[QueueKeys], tick: Tick) -> None:
        now = self._clock()
        if now - self._read_at < READ_S:
            return
        names = {keys.queue for keys in queues}
        scheduled = {name: keys for name, keys in self._scheduled.items() if name in names}
        others = [keys for keys in queues if keys.queue not in scheduled]
        scheduled |= {keys.queue: keys for keys in find_scheduled(self._execute, others)}
        if scheduled:
            self._read_owners()
        jobs: dict[tuple[str, str], _Job] = {}
        self._scheduled = {}
        for keys in scheduled.values():
            of_queue = dict(self._jobs_of(keys, tick))
            if of_queue:
                self._scheduled[keys.queue] = keys
                jobs |= {name: job for name, job in of_queue.items() if job is not None}
        self._jobs = jobs
        self._read_at = now

    def _jobs_of(
        self, keys: QueueKeys, tick: Tick
    ) -> Iterator[tuple[tuple[str, str], _Job | None]]:
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
            job = self._jobs.get((keys.queue, name))
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

    def _is_orphaned(self, job: _Job, now_ms: int) -> bool:
        seen_ms = self._owners.get(job.stored.app)
        if seen_ms is None or now_ms - seen_ms <= ORPHANED_MS:
            return False
        if (
            suppressed := self._throttle.admit(f"orphaned {job.keys.queue} {job.name}")
        ) is not None:
            days = round((now_ms - seen_ms) / 86_400_000, 1)
            fields = {"app": job.stored.app, "app_seen_days_ago": days, "held_back": suppressed}
            self._note("schedule_orphaned", job, **fields)
        return True

    def _new_job(
        self, keys: QueueKeys, name: str, value: bytes, fired_ms: int | None, tick: Tick
    ) -> _Job | None:
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
        return _Job(keys, name, value, stored, schedule, last_ms, due_ms=0)

    # -- firing --------------------------------------------------------------------------------

    def _fire(self, job: _Job, tick: Tick, now_ms: int | None) -> None:
        slots, skipped_ms = due_slots(job.schedule, job.fired_ms, tick.now_ms)
        if skipped_ms is not None:
            command = skip(job.keys, job.name, skipped_ms, job.value, now_ms=now_ms)
            if self._execute(command).fired:
                tick.skipped += 1
                self._note("schedule_skipped", job, slot_ms=skipped_ms)
            job.fired_ms = skipped_ms
        for slot_ms in slots:
            done = self._fire_slot(job, slot_ms, now_ms)
            if job.cancelled and done.holder != job.cancelled:
                # It has ended, perhaps without meeting its tombstone, which every receive would look at.
                self._execute(raw("ZREM", job.keys.cancelled, job.cancelled, decode=int))
                job.cancelled = ""
            if done.fired:
                tick.fire(job.keys.queue, job.stored.task)
                tick.late(tick.now_ms - slot_ms)
                self._note("schedule_fired", job, slot_ms=slot_ms)
            elif done.holder and not self._skips(job, done.holder, slot_ms, now_ms):
                self._waits(job, done.holder, slot_ms, tick)
                return
            elif done.holder:
                tick.skipped += 1
                self._note("schedule_skipped", job, slot_ms=slot_ms, running=done.holder)
            job.fired_ms = slot_ms
        job.due_ms = job.schedule.next_after_ms(tick.now_ms)

    def _fire_slot(
        self, job: _Job, slot_ms: int, now_ms: int | None, overlap: str | None = None
    ) -> Fired:
        chosen = overlap or ("skip" if job.schedule.overlap == "skip" else "queue")
        alone = job.schedule.overlap != "allow"
        return self._execute(
            fire(
                job.keys,
                job.name,
                slot_ms,
                job.value,
                message_id=self._ids.message_id(),
                tail=job.stored.tail(job.name, alone=alone),
                priority=job.stored.priority,
                ttl_ms=job.stored.ttl_ms,
                delay_ms=self._jitter(job.schedule.jitter_ms),
                rule=Rule(job.stored.key(job.name), chosen) if alone else None,
                now_ms=now_ms,
            )
        )

    def _skips(self, job: _Job, holder: str, slot_ms: int, now_ms: int | None) -> bool:
        """Say whether a slot is dropped for the message of an earlier one; if that runs, cancel it where wished.

        One that still waits to run does the slot's work: cancelled each time, none would ever start.
        """
        if job.schedule.overlap == "skip":
            return True
        if job.schedule.overlap != "cancel" or job.cancelled == holder:
            return False
        if not self._is_leased(job.keys, holder):
            self._execute(skip(job.keys, job.name, slot_ms, job.value, now_ms=now_ms))
            return True
        job.cancelled = holder
        self._fire_slot(job, slot_ms, now_ms, "cancel")
        self._note("schedule_cancelled", job, slot_ms=slot_ms, running=holder)
        return False

    def _waits(self, job: _Job, holder: str, slot_ms: int, tick: Tick) -> None:
        """Look for the end of the earlier message again, a second later."""
        job.due_ms = tick.now_ms + LOOK_MS
        if (suppressed := self._throttle.admit(f"waits {job.keys.queue} {job.name}")) is not None:
            fields = {"slot_ms": slot_ms, "running": holder, "held_back": suppressed}
            self._note("schedule_waits", job, **fields)

    def _is_leased(self, keys: QueueKeys, message_id: str) -> bool:
        """Say whether a worker has a message. O(unacked messages)."""
        for lease_id in self._execute(raw("ZRANGE", keys.unacked, 0, -1, decode=list)):
            lease = keys.lease(lease_id.decode("utf-8", "replace"))
            flat = self._execute(raw("HGETALL", lease, decode=list))
            for _, item in held_items(flat):
                envelope = Envelope.parse(item)
                if envelope is not None and envelope.id == message_id:
                    return True
        return False

    def _refused(self, job: _Job, error: Exception, tick: Tick) -> None:
        tick.errors += 1
        if (suppressed := self._throttle.admit(f"refused {job.keys.queue} {job.name}")) is not None:
            self._note("schedule_refused", job, problem=str(error), held_back=suppressed)

    def _note(self, event: str, job: _Job, **fields: object) -> None:
        expected = event in ("schedule_fired", "schedule_waits") or "running" in fields
        level = _log.info if expected else _log.warning
        level(event, schedule=job.name, queue=job.keys.queue, task=job.stored.task, **fields)


def _keeps_the_slot(error: Exception) -> bool:
    """Say whether an error is about this schedule alone; a full server refuses sends only."""
    return concerns_the_call(error) or isinstance(error, OutOfMemoryError | AccessDeniedError)
