"""Fires the schedules that are due, the part of a reaper's pass that sends.

Every slot is one call of `fire.lua`, which compares it with the last slot that fired: any number of reapers fire it
once. A reaper remembers schedules only to save calls for those that are not due.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.protocol import Execute
from qworker.daemon.known_schedules import KnownSchedule, KnownSchedules, note
from qworker.daemon.slots import due_slots
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
)
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items

__all__ = ["Scheduler"]

_log = structlog.get_logger(__name__)

#: How often a slot checks whether the earlier message that it waits for has ended.
LOOK_MS: Final = 1000


def _random_up_to(most: int) -> int:
    return random.randint(0, most)  # noqa: S311 - spreading, not secrecy


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
        self._clustered = clustered
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self.known = KnownSchedules(
            execute, self._throttle, namespace=namespace, clustered=clustered, clock=clock
        )

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
        self.known.read(queues, tick)
        for job in self.known.due(tick.now_ms):
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
        for job in self.known.jobs.values():
            tick.wake_at(job.due_ms)

    # -- firing --------------------------------------------------------------------------------

    def _fire(self, job: KnownSchedule, tick: Tick, now_ms: int | None) -> None:
        slots, skipped_ms = due_slots(job.schedule, job.fired_ms, tick.now_ms)
        if skipped_ms is not None:
            command = skip(job.keys, job.name, skipped_ms, job.value, now_ms=now_ms)
            if self._execute(command).fired:
                tick.skipped += 1
                note("schedule_skipped", job, slot_ms=skipped_ms)
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
                note("schedule_fired", job, slot_ms=slot_ms)
            elif done.holder and not self._skips(job, done.holder, slot_ms, now_ms):
                self._waits(job, done.holder, slot_ms, tick)
                return
            elif done.holder:
                tick.skipped += 1
                note("schedule_skipped", job, slot_ms=slot_ms, running=done.holder)
            job.fired_ms = slot_ms
        job.due_ms = job.schedule.next_after_ms(tick.now_ms)

    def _fire_slot(
        self, job: KnownSchedule, slot_ms: int, now_ms: int | None, overlap: str | None = None
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

    def _skips(self, job: KnownSchedule, holder: str, slot_ms: int, now_ms: int | None) -> bool:
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
        note("schedule_cancelled", job, slot_ms=slot_ms, running=holder)
        return False

    def _waits(self, job: KnownSchedule, holder: str, slot_ms: int, tick: Tick) -> None:
        """Look for the end of the earlier message again, a second later."""
        job.due_ms = tick.now_ms + LOOK_MS
        if (suppressed := self._throttle.admit(f"waits {job.keys.queue} {job.name}")) is not None:
            fields = {"slot_ms": slot_ms, "running": holder, "held_back": suppressed}
            note("schedule_waits", job, **fields)

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

    def _refused(self, job: KnownSchedule, error: Exception, tick: Tick) -> None:
        tick.errors += 1
        if (suppressed := self._throttle.admit(f"refused {job.keys.queue} {job.name}")) is not None:
            note("schedule_refused", job, problem=str(error), held_back=suppressed)


def _keeps_the_slot(error: Exception) -> bool:
    """Say whether an error is about this schedule alone; a full server refuses sends only."""
    return concerns_the_call(error) or isinstance(error, OutOfMemoryError | AccessDeniedError)
