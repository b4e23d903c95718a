"""What must hold of reaps, of other upkeep, and of what operators do."""

from __future__ import annotations

from typing import Final

from verification.interleavings.course import Course, place_of
from verification.interleavings.fixed import NOW, TICK_MS
from verification.interleavings.promised_delivery import NO_COUNTS, blamed
from verification.interleavings.view import View

__all__ = ["claim", "drop", "nothing_moves", "promote", "reap", "redrive", "sweep", "trim"]

_GRACE_MS: Final = 6000
_GAP_MS: Final = 3 * TICK_MS


# -- upkeep ------------------------------------------------------------------------------------


def _overdue_ms(queue: View) -> int:
    """The latest deadline that counts as overdue now: after a gap only what was overdue before it."""
    stats = queue.stats
    last = stats.get("reaped_ms")
    if last is None:
        return NOW
    if not 0 <= NOW - last <= _GAP_MS:
        return min(NOW, last)
    if stats.get("gap_until_ms", 0) > NOW:
        return min(NOW, stats["gap_from_ms"])
    return NOW


def _visited(course: Course) -> str | None:
    """A visit is noted, and a gap before it begins a time of grace."""
    was, now = course.before.stats, course.after.stats
    if now.get("reaped_ms") != NOW:
        return "the visit is not noted"
    gap = "reaped_ms" in was and not 0 <= NOW - was["reaped_ms"] <= _GAP_MS
    if gap and now.get("gap_until_ms") != NOW + _GRACE_MS:
        return "no grace after a gap"
    return None


def sweep(course: Course) -> str | None:
    overdue = {
        name for name, at in course.before.deadlines.items() if at <= _overdue_ms(course.before)
    }
    if set(course.result[1][0].overdue) != overdue:
        return f"it names {course.result[1][0].overdue}, overdue are {sorted(overdue)}"
    return _visited(course) if course.before.deadlines else None


def reap(course: Course) -> str | None:
    overdue_ms, taken = _overdue_ms(course.before), 0
    for lease in course.call[1]:
        if course.before.deadlines.get(lease, overdue_ms + 1) > overdue_ms:
            continue
        taken += 1
        for index, name in course.before.leases[lease].items():
            _take_back(course, name, alone=index == "0")
    if course.result.leases != taken:
        return f"it took back {course.result.leases} leases, {taken} were overdue"
    return _visited(course)


def _take_back(course: Course, name: str, *, alone: bool) -> None:
    if course.over(name):
        course.may(name, None)
        return
    receives, nacks, timeouts, shared = course.was(name).counts
    counts = (receives + 1, nacks, timeouts + alone, shared + (not alone))
    course.may(name, blamed(course, counts))


def claim(course: Course) -> str | None:
    _, new, candidates, count, resume = course.call
    held = course.after.leases.get(new, {})
    ids = [item.split(b" ")[1].decode() for item in course.result.batch.items]
    if ids != list(held.values()):
        return f"it answers {ids}, and {new} holds {list(held.values())}"
    if resume:
        return None
    if course.before.paused_out or len(held) > count:
        return f"{ids} were delivered" if held else None
    for lease, deadline_ms in candidates:
        if course.before.deadlines.get(lease) != deadline_ms:
            continue
        for index, name in course.before.leases[lease].items():
            location = course.was(name)
            _take_back(course, name, alone=index == "0")
            said = course.stands[name]
            if name in held.values():
                at = next(each for each, other in held.items() if other == name)
                course.may(name, *((f"lease:{new} {at}", stand[1]) for stand in said if stand))
            else:
                course.may(name, *said, (place_of(location), location.counts))
    return None


def promote(course: Course) -> str | None:
    for name, due_ms in course.before.due.items():
        if due_ms <= NOW:
            counts = course.was(name).counts
            course.may(name, None if course.over(name) else ("ready", counts))
    return None


def trim(course: Course) -> str | None:
    for name in course.before.order.get("ready", []):
        if course.before.expiries.get(name, NOW + 1) > NOW:
            break
        course.may(name, None)
    return None


# -- operators ---------------------------------------------------------------------------------


def redrive(course: Course) -> str | None:
    named = {name for name, entry in course.before.dead_letters.items() if entry in course.call[1]}
    if sum(course.result) != len(named):
        return f"it answers {course.result}, and {len(named)} were there"
    for name in named:
        course.may(name, ("ready", NO_COUNTS))
    return None


def drop(course: Course) -> str | None:
    named = {name for name, entry in course.before.dead_letters.items() if entry in course.call[1]}
    for name in named:
        course.may(name, None)
    return None if course.result[0] == len(named) else f"it answers {course.result}"


def nothing_moves(course: Course) -> str | None:
    del course
    return None
