"""Schedules that a program adds, changes and removes while it runs. Workers write those of an app's code.

They are stored beside those (see `qworker.daemon.schedules`), and belong to no app: they fire until they are removed.
"""

from __future__ import annotations

from typing import Final

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import raw, server_time
from qworker.errors import InvalidError, InvalidNameError, InvalidOptionError
from qworker.wire.names import check_schedule
from qworker.wire.schedule import FIRED, PAUSED, StoredSchedule

__all__ = ["MAX_BODY", "MAX_SCHEDULES", "put_schedule", "remove_schedule"]

#: Schedules of a queue: every reaper reads all of them every five seconds.
MAX_SCHEDULES: Final = 10_000
#: Bytes of a call, for the same reason.
MAX_BODY: Final = 16_384


def put_schedule(queue: QueueRef, name: str, schedule: StoredSchedule) -> Plan[bool]:
    """Add a schedule to its queue, or change it; returns False if it was the same already.

    One that is new, or whose times were changed, fires from its next slot on; a paused one stays paused. Reapers notice
    within five seconds. Raises `InvalidNameError` for the name of a schedule of an app, and `InvalidOptionError` for a
    call that is too large, in a queue with too many schedules, or with a group in a divided queue. O(1).
    """
    if len(schedule.body) > MAX_BODY:
        problem = f"has a call of {len(schedule.body):,} bytes"
        raise InvalidOptionError(
            "schedule", problem, f"at most {MAX_BODY:,}: store the data elsewhere, and send its id"
        )
    if schedule.group:
        yield from queue.check_undivided(schedule.group)
    before = yield from _read(queue, check_schedule(name))
    value = schedule.encode()
    if before == value:
        return False
    key = queue.keys.schedules
    if before is None:
        fields: int = yield raw("HLEN", key, decode=int)
        # Each has its last slot beside it.
        if fields // 2 >= MAX_SCHEDULES:
            raise InvalidOptionError(
                "schedule",
                f"cannot be added: queue {queue.keys.queue!r} has {MAX_SCHEDULES:,}",
                "remove some, or send the messages by one schedule that looks up the due work",
            )
    words: list[str | int | bytes] = [name, value]
    known = None if before is None else _parsed(before)
    if known is None or known.times != schedule.times:
        now_ms: int = yield server_time()
        words += [name + FIRED, now_ms]
    yield raw("HSET", key, *words, decode=int)
    yield from queue.announce()
    return True


def remove_schedule(queue: QueueRef, name: str) -> Plan[bool]:
    """Remove a schedule from its queue; returns whether there was one. It does not fire from then on.

    Raises `InvalidNameError` for one of an app, whose next worker would write it again.
    """
    if (yield from _read(queue, check_schedule(name))) is None:
        return False
    words = (name, name + FIRED, name + PAUSED)
    number: int = yield raw("HDEL", queue.keys.schedules, *words, decode=int)
    return number > 0


def _read(queue: QueueRef, name: str) -> Plan[bytes | None]:
    """Read a schedule that belongs to no app."""
    value: bytes | None = yield raw("HGET", queue.keys.schedules, name)
    owner = None if value is None else _parsed(value)
    if owner is not None and owner.app:
        raise InvalidNameError(
            "schedule",
            f"{name!r} of queue {queue.keys.queue!r} belongs to app {owner.app!r}",
            "choose another name, or change that app's code",
        )
    return value


def _parsed(value: bytes) -> StoredSchedule | None:
    try:
        return StoredSchedule.parse(value)
    except InvalidError:
        return None
