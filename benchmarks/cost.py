"""cost: what a message costs the server over its life (send, receive, ack), in batches of 100."""

from __future__ import annotations

from benchmarks.contenders import BODY, CANCELLED, bare, of_ours, of_peers, spent, to_peers
from benchmarks.figures import Figure, at_most, gave_up, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import Plan

__all__ = ["cost"]

_BATCH = 100
_OURS = "qworker"
_FLOOR = "LPUSH + RPOP, pipelines of 100"
_SEND, _WORK = (("LPUSH", "floor", BODY),), (("RPOP", "floor"),)


def cost(plan: Plan) -> list[Figure]:
    """Measure CPU, socket reads and commands of the server per message, beside two bare commands a message."""
    contenders = {
        _OURS: lambda: of_ours(plan.messages, _BATCH),
        CANCELLED: lambda: of_ours(plan.messages, _BATCH, cancelled=1),
        _FLOOR: lambda: bare(plan.messages, _BATCH, _SEND, _WORK),
        **of_peers(plan),
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures: list[Figure] = []
    for contender in samples.having("cpu_us"):
        goals = {"round_trips": at_most(0.03)} if contender == _OURS else {}
        figures += spent("cost", samples, contender, goals)
    ours, floor = samples.of(_OURS, "cpu_us"), samples.of(_FLOOR, "cpu_us")
    figures.append(ratio("cost", "server CPU to LPUSH + RPOP", ours, floor, at_most(2.5)))
    beside = samples.of(CANCELLED, "cpu_us")
    figures.append(
        ratio("cost", "server CPU beside a tombstone to none", beside, ours, at_most(1.15))
    )
    figures += to_peers("cost", plan, samples, _OURS, best=at_most(0.125))
    return [*figures, *gave_up("cost", samples.gave_up)]
