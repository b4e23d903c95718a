"""What must hold of every call: who may move, where to, with which counts; and of every queue.

Written from the rules, not from the Lua. For each verb the places and counts that a message may have afterwards are
worked out from where it was before; a message of which nothing is said must stand as it stood. So a stale receipt that
moves anything, a message lost, doubled or blamed wrongly, and a reply that says what is not so are all breaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from verification.interleavings import promised_delivery as delivery
from verification.interleavings import promised_flows as flows
from verification.interleavings import promised_upkeep as upkeep
from verification.interleavings.bench import Outcome, Refused
from verification.interleavings.course import Course
from verification.interleavings.fixed import NOW, Call
from verification.interleavings.view import View, view

__all__ = ["breach", "doubled"]


def doubled(queue: View) -> str | None:
    """A message that is in two places."""
    for name, locations in queue.locations.items():
        if len(locations) > 1:
            return f"{name} is in {len(locations)} places: {', '.join(location.place for location in locations)}"
    return None


def _miscounted(queue: View) -> str | None:
    if set(queue.leases) != set(queue.deadlines):
        return f"leases {sorted(queue.leases)} have the deadlines of {sorted(queue.deadlines)}"
    held = sum(map(len, queue.leases.values()))
    stored = sum(locations[0].place != "dead" for locations in queue.locations.values())
    for counter, right in (("unacked", held), ("stored", stored)):
        if (counted := queue.stats.get(counter, 0)) != right:
            return f"the counter {counter} says {counted}, there are {right}"
    for key, (holder, until_ms) in queue.unique.items():
        if until_ms > NOW and holder not in queue.locations:
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
        return (
            None
            if flows.just(call, before, result)
            else _unjust_refusal(call, before, result.error)
        )
    if getattr(result, "degraded", False):
        return "its counters failed"
    if (wrong := doubled(after)) is not None:
        return wrong
    course = Course(call, before, result, after, counted)
    wrong = _VERBS[call[0]](course) or course.breach() or _miscounted(after) or flows.untold(course)
    return wrong or flows.astray(after) or _silent(before, after, rung)


def _silent(before: View, after: View, rung: int) -> str | None:
    """Every call that makes a message ready rings the doorbell."""
    if after.paused_out or rung:
        return None
    for place, names in after.order.items():
        for name in names:
            was = before.locations.get(name)
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


_VERBS: Final[dict[str, Callable[[Course], str | None]]] = {
    "send": delivery.send,
    "fire": delivery.fire,
    "settle": delivery.settle,
    "receive": delivery.receive,
    "extend": delivery.extend,
    "split": delivery.split,
    "claim": upkeep.claim,
    "sweep": upkeep.sweep,
    "reap": upkeep.reap,
    "promote": upkeep.promote,
    "trim": upkeep.trim,
    "redrive": upkeep.redrive,
    "drop": upkeep.drop,
    "cancel": upkeep.nothing_moves,
    "prune": upkeep.nothing_moves,
    "configure": upkeep.nothing_moves,
    "begin": flows.begin,
    "forward": flows.forward,
    "store": flows.store,
    "abandon": flows.abandon,
    "step": flows.step,
    "signal": flows.signal,
}
