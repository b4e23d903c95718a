"""Which slots of a schedule are due: those that were missed, too, as far as it wants them."""

from __future__ import annotations

from typing import Final

from qworker.app.schedule import Schedule

__all__ = ["MAX_MISSED", "ON_TIME_MS", "due_slots"]

#: Missed slots that `missed=all` fires at most; older ones are dropped.
MAX_MISSED: Final = 100
#: With `missed=skip` a slot fires up to this late: a daemon may just have been replaced.
ON_TIME_MS: Final = 60_000


def due_slots(schedule: Schedule, fired_ms: int, now_ms: int) -> tuple[list[int], int | None]:
    """Return the slots after `fired_ms` to fire at `now_ms`, in order, and the slot up to which all are skipped.

    At most `MAX_MISSED` slots. O(slots).
    """
    last_ms = schedule.previous_ms(now_ms)
    if last_ms <= fired_ms:
        return [], None
    if schedule.missed == "skip" and now_ms - last_ms > ON_TIME_MS:
        return [], last_ms
    slots = [last_ms]
    while schedule.missed == "all" and len(slots) < MAX_MISSED:
        before_ms = schedule.previous_ms(slots[-1] - 1)
        if before_ms <= fired_ms:
            break
        slots.append(before_ms)
    return slots[::-1], None
