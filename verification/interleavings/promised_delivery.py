"""What must hold of sends, deliveries and settles."""

from __future__ import annotations

from typing import Any

from verification.interleavings.course import Counts, Course, Stand, say_stand
from verification.interleavings.fixed import NOW

__all__ = ["NO_COUNTS", "blamed", "extend", "fire", "receive", "send", "settle", "split"]

NO_COUNTS = (0, 0, 0, 0)

# -- sending -----------------------------------------------------------------------------------


def send(course: Course) -> str | None:
    _, lane, number, messages, delay_ms = course.call
    result, before = course.result, course.before
    known = lane != "" and before.lanes.get(lane, 0) >= number
    if result.repeated != known:
        return f"the lane stood at {before.lanes.get(lane, 0)}, and the answer says repeated={result.repeated}"
    stored = 0
    for position, (name, key) in enumerate(messages):
        holder, until_ms = before.unique.get(key, ("", 0))
        out = position in result.duplicates
        if not known and out != (until_ms > NOW and holder != name):
            return f"{name} was {'kept out' if out else 'let in'} while {holder} held {key}"
        if not known and not out:
            course.may(name, ("delayed" if delay_ms else "ready", NO_COUNTS))
            stored += 1
    course.counts["sent"] = stored
    return None


def fire(course: Course) -> str | None:
    _, slot, name = course.call
    if course.result.fired != (course.before.fired < slot):
        return f"slot {slot} answered {course.result.fired}, the last one fired was {course.before.fired}"
    if course.result.fired:
        course.may(name, ("ready", NO_COUNTS))
    return None


# -- receiving and settling --------------------------------------------------------------------


def settle(course: Course) -> str | None:
    if wrong := _apply_outcomes(course, course.call[1], course.result.per_lease):
        return wrong
    counted = []
    for lease, acks, others, uniques in course.call[1]:
        held = course.before.leases.get(lease, {})
        named = [*(index for index, _, _ in uniques), *acks]
        named += [index for _, index, _ in others if index != "*"]
        counted += [index in held for index in named]
    if list(course.result.counted) != counted:
        return f"it says that {list(course.result.counted)} counted, and {counted} were held"
    return None


def receive(course: Course) -> str | None:
    _, lease, count, outcomes, resume, suspects = course.call
    before, after, result = course.before, course.after, course.result
    if wrong := _apply_outcomes(course, outcomes, result.settled):
        return wrong
    held = after.leases.get(lease, {})
    ids = [item.split(b" ")[1].decode() for item in result.items]
    if dict(zip(result.indices, ids, strict=True)) != held:
        return f"it answers {ids}, and {lease} holds {list(held.values())}"
    if resume:
        return None
    course.counts["received"] = len(held)
    waiting = [
        name
        for name in before.locations
        if any(stand is not None and _takes(stand[0], suspects) for stand in course.standing(name))
        and not course.over(name)
    ]
    if before.paused_out:
        return f"{ids} were delivered while paused" if ids else None
    # One suspect is read at a time. In the place of one that is over nothing comes, and the answer says: ask again.
    asks_again = result.hint_ms == 0 and any(
        course.over(name) and course.was(name).place == "suspect" for name in before.locations
    )
    if len(held) > count or (waiting and not held and not asks_again):
        return f"it delivered {ids} of {waiting}"
    for index, name in held.items():
        if name not in before.locations:
            return f"{name} came from nowhere"
        said = course.standing(name)
        was = [stand for stand in said if stand is not None and _takes(stand[0], suspects)]
        if not was:
            return f"{name} was {' or '.join(map(say_stand, said))} and yet delivered"
        if len(held) > 1 and all(stand[0] == "suspect" for stand in was):
            return f"the suspect {name} was delivered in company"
        if (index == "0") != (len(held) == 1):
            return f"{name} has index {index} of {len(held)}"
        course.may(name, *((f"lease:{lease} {index}", stand[1]) for stand in was))
    for name in before.locations:
        if course.over(name) and _takes(course.was(name).place, suspects) and name not in held:
            course.may(name, *course.standing(name), None)
    return None


def _takes(place: str, suspects: int) -> bool:
    return place.startswith("ready") or (place == "suspect" and suspects > 0)


def _apply_outcomes(course: Course, outcomes: Any, per_lease: Any) -> str | None:
    acked = stale = 0
    for (lease, acks, others, uniques), settled in zip(outcomes, per_lease, strict=True):
        held = dict(course.before.leases.get(lease, {}))
        before = len(held)
        for index in (*(index for index, _, _ in uniques), *acks):
            name = held.pop(index, None)
            if name is None:
                stale += 1
            else:
                acked += 1
                course.may(name, None)
        for kind, index, delay_ms in others:
            named = list(held) if index == "*" else [index]
            for each in named:
                name = held.pop(each, None)
                if name is None:
                    stale += 1
                    continue
                acked += kind == "value"
                course.may(name, *_ended(course, name, kind, delay_ms))
        if before - len(held) != settled:
            return f"it says that {settled} of {lease} were settled, and {before - len(held)} were"
    course.counts |= {"acked": acked, "stale": stale}
    return None


def _ended(course: Course, name: str, kind: str, delay_ms: Any) -> list[Stand]:
    """Where a held message goes by an outcome."""
    receives, nacks, timeouts, shared = course.was(name).counts
    match kind:
        case "value":
            return [None]
        case "park":
            given = f"!{delay_ms}" in course.before.runs.get(name, {})
            counts = (receives + 1, nacks, timeouts, shared)
            return [(_home(counts) if given else "delayed", counts)]
        case "bury":
            return [("dead", (receives + 1, nacks, timeouts, shared))]
        case "release":
            counts = (receives, nacks, timeouts, shared)
            return [(_home(counts), counts)]
        case "share":
            return [blamed(course, (receives + 1, nacks, timeouts, shared + 1))]
        case "crash":
            return [blamed(course, (receives + 1, nacks, timeouts + 1, shared))]
    counts = (receives + 1, nacks + 1, timeouts, shared)
    if nacks + 1 + timeouts >= course.limit:
        return [("dead", counts)]
    return [("delayed" if delay_ms else "ready", counts)]


def blamed(course: Course, counts: Counts) -> Stand:
    """Where a message goes whose worker was lost: only its own failures bury it."""
    _, nacks, timeouts, _ = counts
    return ("dead" if nacks + timeouts >= course.limit else _home(counts), counts)


def _home(counts: Counts) -> str:
    """Who may have cost a worker its life is delivered alone."""
    _, _, timeouts, shared = counts
    return "suspect" if timeouts > 0 or shared >= 2 else "ready"


def extend(course: Course) -> str | None:
    for lease in course.call[1]:
        was, now = course.before.deadlines.get(lease), course.after.deadlines.get(lease)
        if (was is None) != (now is None) or (was is not None and now is not None and now < was):
            return f"the deadline of {lease} was {was} and is {now}"
        if course.result[lease] != (now or 0):
            return f"it answers {course.result[lease]} for {lease}, whose deadline is {now}"
    return None


def split(course: Course) -> str | None:
    _, lease, index, new = course.call
    name = course.before.leases.get(lease, {}).get(index)
    if bool(course.result) != (name is not None):
        return f"it answers {course.result}, and {lease}.{index} is {name}"
    if name is not None:
        course.may(name, (f"lease:{new} {index}", course.was(name).counts))
    return None
