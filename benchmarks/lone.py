"""lone: what a message alone costs the server: sent by its own call, received and acked by a worker one by one."""

from __future__ import annotations

from benchmarks.contenders import BODY, CANCELLED, bare, of_ours, of_peers, spent, to_peers
from benchmarks.figures import Figure, at_most, gave_up, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import Plan

__all__ = ["lone"]

_OURS = "qworker"
_FLOOR = "LPUSH + RPOPLPUSH + LREM, one a trip"
#: The least that loses nothing: an item that is taken stands in another list until its work is done.
_SEND = (("LPUSH", "floor", BODY),)
_WORK = (("RPOPLPUSH", "floor", "taken"), ("LREM", "taken", 1, BODY))
_GOALS = {"round_trips": at_most(2.05), "commands": at_most(18)}


def lone(plan: Plan) -> list[Figure]:
    """Measure CPU, socket reads and commands of the server per message, beside three bare commands a message."""
    contenders = {
        _OURS: lambda: of_ours(plan.messages, 1),
        CANCELLED: lambda: of_ours(plan.messages, 1, cancelled=1),
        _FLOOR: lambda: bare(plan.messages, 1, _SEND, _WORK),
        **of_peers(plan),
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures: list[Figure] = []
    for contender in samples.having("cpu_us"):
        figures += spent("lone", samples, contender, _GOALS if contender == _OURS else {})
    ours, floor = samples.of(_OURS, "cpu_us"), samples.of(_FLOOR, "cpu_us")
    figures.append(ratio("lone", "server CPU to three bare commands", ours, floor, at_most(1.6)))
    beside = samples.of(CANCELLED, "cpu_us")
    figures.append(
        ratio("lone", "server CPU beside a tombstone to none", beside, ours, at_most(1.15))
    )
    figures += to_peers("lone", plan, samples, _OURS, best=at_most(2), others=at_most(1))
    return [*figures, *gave_up("lone", samples.gave_up)]
