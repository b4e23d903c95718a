"""Fire the schedules that are due: the part of a reaper's pass that sends.

Every slot is one call of `fire.lua`, which compares it with the last slot that fired: any number of reapers fire it
once. What each reaper keeps in memory only saves it from asking for what is not due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from qworker.app.schedule import Schedule, parse_schedule
from qworker.client.commands.scheduling import fire, skip
from qworker.client.owners import ORPHANED_MS, read_owners
from qworker.daemon.registry import AWAY, Execute
from qworker.daemon.schedules import StoredSchedule, find_scheduled, read_schedules
from qworker.daemon.tick import Tally
from qworker.errors import (
    AccessDeniedError,
    InvalidError,
    OutOfMemoryError,
    RefusedError,
    ServerError,
    concerns_the_call,
)
from qworker.telemetry.logs import Seldom
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys

__all__ = ["MOST_MISSED", "ON_TIME_MS", "Scheduler", "due_slots"]

_log = structlog.get_logger(__name__)

#: Seconds between two looks at which schedules there are.
READ_S: Final = 5.0
#: Slots that `missed=all` makes good for at most; older ones are dropped.
MOST_MISSED: Final = 100
#: With `missed=skip` a slot fires if it is noticed this soon: a daemon may be replaced meanwhile.
ON_TIME_MS: Final = 60_000
#: A last slot that is so far ahead was fired by a clock that has been set back since, or is nobody's (see `fire.lua`).
AHEAD_MS: Final = 3_600_000


def due_slots(schedule: Schedule, fired_ms: int, now_ms: int) -> tuple[list[int], int | None]:
    """Say which slots after `fired_ms` are to fire at `now_ms`, in their order, and up to which one all are skipped.

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


@dataclass(slots=True)
class _Entry:
    """A schedule as this reaper knows it."""

    keys: QueueKeys
    name: str
    value: bytes
    stored: StoredSchedule
    schedule: Schedule
    fired_ms: int
    #: When to look at it next: at its next slot, or at once while a slot is refused.
    due_ms: int


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
    ) -> None:
        self._execute = execute
        self._ids = ids
        self._namespace = namespace
        self._clustered = clustered
        self._clock = clock
        self._seldom = Seldom(clock=clock)
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._scheduled: dict[str, QueueKeys] = {}
        #: When the app of each schedule was seen last, in ms.
        self._owners: dict[str, int] = {}
        self._read_at = float("-inf")

    def fire(
        self,
        queues: Sequence[QueueKeys],
        tally: Tally,
        deadline: float,
        now_ms: int | None = None,
    ) -> None:
        """Fire what is due at the tally's time, until `deadline` by the clock, and note when the next slot is.

        A queue that refuses (paused, full) or a full server leaves its slots for the next pass, and is logged.
        """
        self._read(queues, tally)
        for entry in self.due(tally.now_ms):
            if self._clock() >= deadline:
                tally.more = True
                break
            try:
                self._fire(entry, tally, now_ms)
            except (RefusedError, InvalidError, ServerError) as error:
                # A node of a Cluster that is away keeps its own schedules waiting, and no others.
                away = self._clustered and isinstance(error, AWAY)
                if not (away or _leaves_the_slot(error)):
                    raise
                self._refused(entry, error, tally)
        for entry in self._entries.values():
            tally.wake_at(entry.due_ms)

    def due(self, now_ms: int) -> list[_Entry]:
        """The schedules to look at now, the longest due first."""
        due = [entry for entry in self._entries.values() if entry.due_ms <= now_ms]
        return sorted(due, key=lambda entry: entry.due_ms)

    @property
    def tasks(self) -> set[tuple[str, str]]:
        """The queue and the task of each schedule that is known."""
        return {(entry.keys.queue, entry.stored.task) for entry in self._entries.values()}

    def forget(self) -> None:
        """Look at once which schedules there are, at the next pass."""
        self._read_at = float("-inf")

    # -- reading -------------------------------------------------------------------------------

    def _read(self, queues: Sequence[QueueKeys], tally: Tally) -> None:
        now = self._clock()
        if now - self._read_at < READ_S:
            return
        known = {keys.queue for keys in queues}
        scheduled = {name: keys for name, keys in self._scheduled.items() if name in known}
        others = [keys for keys in queues if keys.queue not in scheduled]
        scheduled |= {keys.queue: keys for keys in find_scheduled(self._execute, others)}
        if scheduled:
            self._read_owners()
        entries: dict[tuple[str, str], _Entry] = {}
        self._scheduled = {}
        for keys in scheduled.values():
            found = dict(self._entries_of(keys, tally))
            if found:
                self._scheduled[keys.queue] = keys
                entries |= {key: entry for key, entry in found.items() if entry is not None}
        self._entries = entries
        self._read_at = now

    def _entries_of(
        self, keys: QueueKeys, tally: Tally
    ) -> Iterator[tuple[tuple[str, str], _Entry | None]]:
        """The schedules of a queue; None for those that do not fire now."""
        try:
            stored = read_schedules(self._execute, keys)
        except ServerError as error:
            if type(error) is not ServerError and not isinstance(error, AccessDeniedError):
                raise
            tally.broken.add(keys.queue)
            if self._seldom.more(f"broken {keys.queue}") is not None:
                _log.error("schedules_broken", queue=keys.queue, problem=str(error))
            return
        latest_ms = tally.now_ms + AHEAD_MS
        for name, written in stored.items():
            value, last_ms = written.value, written.fired_ms
            fired_ms = None if last_ms is None or last_ms > latest_ms else last_ms
            entry = self._entries.get((keys.queue, name))
            if entry is None or entry.value != value or entry.fired_ms > latest_ms:
                entry = self._made(keys, name, value, fired_ms, tally)
            elif fired_ms is not None:
                entry.fired_ms = max(entry.fired_ms, fired_ms)
            if entry is not None:
                rests = written.paused_ms is not None or self._is_orphaned(entry, tally.now_ms)
                yield (keys.queue, name), None if rests else entry

    def _read_owners(self) -> None:
        try:
            self._owners = read_owners(self._execute, self._namespace)
        except ServerError as error:
            # Forbidden by an ACL of an older version, of another type, or on a node that is away: all go on to fire.
            away = self._clustered and isinstance(error, AWAY)
            if not (away or type(error) is ServerError or isinstance(error, AccessDeniedError)):
                raise
            self._owners = {}
            if self._seldom.more("owners") is not None:
                _log.warning("owners_unread", problem=str(error))

    def _is_orphaned(self, entry: _Entry, now_ms: int) -> bool:
        seen_ms = self._owners.get(entry.stored.app)
        if seen_ms is None or now_ms - seen_ms <= ORPHANED_MS:
            return False
        if (held := self._seldom.more(f"orphaned {entry.keys.queue} {entry.name}")) is not None:
            days = round((now_ms - seen_ms) / 86_400_000, 1)
            fields = {"app": entry.stored.app, "app_seen_days_ago": days, "held_back": held}
            self._tell("schedule_orphaned", entry, **fields)
        return True

    def _made(
        self, keys: QueueKeys, name: str, value: bytes, fired_ms: int | None, tally: Tally
    ) -> _Entry | None:
        try:
            stored = msgspec.json.decode(value, type=StoredSchedule)
            schedule = parse_schedule(stored.spec)
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidError) as error:
            if self._seldom.more(f"unreadable {keys.queue} {name}") is not None:
                _log.error(
                    "schedule_unreadable", queue=keys.queue, schedule=name, problem=str(error)
                )
            return None
        # Without a last slot that can be (written by hand) it begins now, like one that was just registered.
        last_ms = tally.now_ms if fired_ms is None else fired_ms
        return _Entry(keys, name, value, stored, schedule, last_ms, due_ms=0)

    # -- firing --------------------------------------------------------------------------------

    def _fire(self, entry: _Entry, tally: Tally, now_ms: int | None) -> None:
        slots, skipped_ms = due_slots(entry.schedule, entry.fired_ms, tally.now_ms)
        if skipped_ms is not None:
            command = skip(entry.keys, entry.name, skipped_ms, entry.value, now_ms=now_ms)
            if self._execute(command):
                tally.skipped += 1
                self._tell("schedule_skipped", entry, slot_ms=skipped_ms)
            entry.fired_ms = skipped_ms
        for slot_ms in slots:
            command = fire(
                entry.keys,
                entry.name,
                slot_ms,
                entry.value,
                message_id=self._ids.message_id(),
                tail=entry.stored.tail(entry.name),
                priority=entry.stored.priority,
                ttl_ms=entry.stored.ttl_ms,
                now_ms=now_ms,
            )
            if self._execute(command):
                tally.fire(entry.keys.queue, entry.stored.task)
                tally.late(tally.now_ms - slot_ms)
                self._tell("schedule_fired", entry, slot_ms=slot_ms)
            entry.fired_ms = slot_ms
        entry.due_ms = entry.schedule.next_after_ms(tally.now_ms)

    def _refused(self, entry: _Entry, error: Exception, tally: Tally) -> None:
        tally.errors += 1
        if (held := self._seldom.more(f"refused {entry.keys.queue} {entry.name}")) is not None:
            self._tell("schedule_refused", entry, problem=str(error), held_back=held)

    def _tell(self, event: str, entry: _Entry, **fields: object) -> None:
        level = _log.info if event == "schedule_fired" else _log.warning
        level(event, schedule=entry.name, queue=entry.keys.queue, task=entry.stored.task, **fields)


def _leaves_the_slot(error: Exception) -> bool:
    """Say whether an error is about this schedule alone; a full server takes no sends but everything else."""
    return concerns_the_call(error) or isinstance(error, OutOfMemoryError | AccessDeniedError)
