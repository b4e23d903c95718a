"""What must hold of every call: who may move, where to, with which counts; and of every queue.

Written from the rules, not from the Lua. For each verb the places and counts that a message may have afterwards are
worked out from where it was before; a message of which nothing is said must stand as it stood. So a stale receipt that
moves anything, a message lost, doubled or blamed wrongly, and a reply that says what is not so are all breaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from verification.interleavings.bench import Outcome, Refused
from verification.interleavings.calls import NOW, TICK_MS, Call
from verification.interleavings.course import Counts, Course, Stand, place_of, say_stand
from verification.interleavings.tables import View, view

__all__ = ["breach", "doubled"]

_GRACE_MS: Final = 6000
_GAP_MS: Final = 3 * TICK_MS
_NO_COUNTS: Final = (0, 0, 0, 0)


def doubled(queue: View) -> str | None:
    """A message that is in two places."""
    for name, spots in queue.spots.items():
        if len(spots) > 1:
            return f"{name} is in {len(spots)} places: {', '.join(spot.place for spot in spots)}"
    return None


def _miscounted(queue: View) -> str | None:
    if set(queue.leases) != set(queue.deadlines):
        return f"leases {sorted(queue.leases)} have the deadlines of {sorted(queue.deadlines)}"
    held = sum(map(len, queue.leases.values()))
    stored = sum(spots[0].place != "dead" for spots in queue.spots.values())
    for counter, right in (("unacked", held), ("stored", stored)):
        if (counted := queue.stats.get(counter, 0)) != right:
            return f"the counter {counter} says {counted}, there are {right}"
    for key, (holder, until_ms) in queue.unique.items():
        if until_ms > NOW and holder not in queue.spots:
            return f"the unique key {key} is held by {holder}, which is gone"
    return None


def breach(call: Call, before: View, outcome: Outcome) -> str | None:
    """The promise that this call broke, or None."""
    result, (table, counted, rung) = outcome
    if isinstance(result, str):
        return f"the script raised: {result}"
    after = view(table)
    if isinstance(result, Refused):
        if table != before.table:
            return f"it was refused ({result.error}), and yet the queue has changed"
        return _unjust_refusal(call, before, result.error)
    if getattr(result, "degraded", False):
        return "its counters failed"
    if (wrong := doubled(after)) is not None:
        return wrong
    course = Course(call, before, result, after, counted)
    wrong = _VERBS[call[0]](course) or course.breach() or _miscounted(after)
    return wrong or _silent(before, after, rung)


def _silent(before: View, after: View, rung: int) -> str | None:
    """Every call that makes a message ready rings the doorbell."""
    if after.paused_out or rung:
        return None
    for place, names in after.order.items():
        for name in names:
            was = before.spots.get(name)
            if was is None or was[0].place != place:
                return f"{name} has come to {place}, and no receiver is woken"
    return None


def _unjust_refusal(call: Call, before: View, error: str) -> str | None:
    maxlen = int(before.meta.get("maxlen", "0"))
    just = {
        "GhostSendError": call[0] == "send" and call[2] < before.lanes.get(call[1], 0),
        "QueuePausedError": call[0] in ("send", "fire")
        and before.meta.get("paused") in ("in", "all"),
        "QueueFullError": call[0] in ("send", "fire")
        and 0 < maxlen < before.stats.get("stored", 0) + 9,
        "LeaseUsedError": call[0] in ("receive", "claim", "split")
        and (call[3] if call[0] == "split" else call[1]) in before.leases,
    }
    return None if just.get(error) else f"it was refused without cause: {error}"


# -- sending -----------------------------------------------------------------------------------


def _send(course: Course) -> str | None:
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
            course.may(name, ("delayed" if delay_ms else "ready", _NO_COUNTS))
            stored += 1
    course.counts["sent"] = stored
    return None


def _fire(course: Course) -> str | None:
    _, slot, name = course.call
    if course.result.fired != (course.before.fired < slot):
        return f"slot {slot} answered {course.result.fired}, the last one fired was {course.before.fired}"
    if course.result.fired:
        course.may(name, ("ready", _NO_COUNTS))
    return None


# -- receiving and settling --------------------------------------------------------------------


def _settle(course: Course) -> str | None:
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


def _receive(course: Course) -> str | None:
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
        for name in before.spots
        if any(stand is not None and _takes(stand[0], suspects) for stand in course.standing(name))
        and not course.over(name)
    ]
    if before.paused_out:
        return f"{ids} were delivered while paused" if ids else None
    if len(held) > count or (waiting and not held):
        return f"it delivered {ids} of {waiting}"
    for index, name in held.items():
        if name not in before.spots:
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
    for name in before.spots:
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
                else:
                    course.may(name, *_ended(course, name, kind, delay_ms))
        if before - len(held) != settled:
            return f"it says that {settled} of {lease} were settled, and {before - len(held)} were"
    course.counts |= {"acked": acked, "stale": stale}
    return None


def _ended(course: Course, name: str, kind: str, delay_ms: int) -> list[Stand]:
    """Where a held message goes by an outcome."""
    receives, nacks, timeouts, shared = course.was(name).counts
    match kind:
        case "bury":
            return [("dead", (receives + 1, nacks, timeouts, shared))]
        case "release":
            counts = (receives, nacks, timeouts, shared)
            return [(_home(counts), counts)]
        case "share":
            return [_blamed(course, (receives + 1, nacks, timeouts, shared + 1))]
        case "crash":
            return [_blamed(course, (receives + 1, nacks, timeouts + 1, shared))]
    counts = (receives + 1, nacks + 1, timeouts, shared)
    if nacks + 1 + timeouts >= course.limit:
        return [("dead", counts)]
    return [("delayed" if delay_ms else "ready", counts)]


def _blamed(course: Course, counts: Counts) -> Stand:
    """Where a message goes whose worker was lost: only its own failures bury it."""
    _, nacks, timeouts, _ = counts
    return ("dead" if nacks + timeouts >= course.limit else _home(counts), counts)


def _home(counts: Counts) -> str:
    """Who may have cost a worker its life is delivered alone."""
    _, _, timeouts, shared = counts
    return "suspect" if timeouts > 0 or shared >= 2 else "ready"


def _extend(course: Course) -> str | None:
    for lease in course.call[1]:
        was, now = course.before.deadlines.get(lease), course.after.deadlines.get(lease)
        if (was is None) != (now is None) or (was is not None and now is not None and now < was):
            return f"the deadline of {lease} was {was} and is {now}"
        if course.result[lease] != (now or 0):
            return f"it answers {course.result[lease]} for {lease}, whose deadline is {now}"
    return None


def _split(course: Course) -> str | None:
    _, lease, index, new = course.call
    name = course.before.leases.get(lease, {}).get(index)
    if bool(course.result) != (name is not None):
        return f"it answers {course.result}, and {lease}.{index} is {name}"
    if name is not None:
        course.may(name, (f"lease:{new} {index}", course.was(name).counts))
    return None


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


def _sweep(course: Course) -> str | None:
    overdue = {
        name for name, at in course.before.deadlines.items() if at <= _overdue_ms(course.before)
    }
    if set(course.result[1][0].overdue) != overdue:
        return f"it names {course.result[1][0].overdue}, overdue are {sorted(overdue)}"
    return _visited(course) if course.before.deadlines else None


def _reap(course: Course) -> str | None:
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
    course.may(name, _blamed(course, counts))


def _claim(course: Course) -> str | None:
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
            spot = course.was(name)
            _take_back(course, name, alone=index == "0")
            said = course.stands[name]
            if name in held.values():
                at = next(each for each, other in held.items() if other == name)
                course.may(name, *((f"lease:{new} {at}", stand[1]) for stand in said if stand))
            else:
                course.may(name, *said, (place_of(spot), spot.counts))
    return None


def _promote(course: Course) -> str | None:
    for name, due_ms in course.before.due.items():
        if due_ms <= NOW:
            counts = course.was(name).counts
            course.may(name, None if course.over(name) else ("ready", counts))
    return None


def _trim(course: Course) -> str | None:
    for name in course.before.order.get("ready", []):
        if course.before.expiries.get(name, NOW + 1) > NOW:
            break
        course.may(name, None)
    return None


# -- operators ---------------------------------------------------------------------------------


def _redrive(course: Course) -> str | None:
    named = {name for name, entry in course.before.dead_letters.items() if entry in course.call[1]}
    if sum(course.result) != len(named):
        return f"it answers {course.result}, and {len(named)} were there"
    for name in named:
        course.may(name, ("ready", _NO_COUNTS))
    return None


def _drop(course: Course) -> str | None:
    named = {name for name, entry in course.before.dead_letters.items() if entry in course.call[1]}
    for name in named:
        course.may(name, None)
    return None if course.result == len(named) else f"it answers {course.result}"


def _nothing_moves(course: Course) -> str | None:
    del course
    return None


_VERBS: Final[dict[str, Callable[[Course], str | None]]] = {
    "send": _send,
    "fire": _fire,
    "settle": _settle,
    "receive": _receive,
    "extend": _extend,
    "split": _split,
    "claim": _claim,
    "sweep": _sweep,
    "reap": _reap,
    "promote": _promote,
    "trim": _trim,
    "redrive": _redrive,
    "drop": _drop,
    "cancel": _nothing_moves,
    "prune": _nothing_moves,
    "configure": _nothing_moves,
}
