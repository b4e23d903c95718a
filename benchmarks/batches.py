"""batches: what a message costs the server in batches of 1 to 100: of ours, and of peers that have such a setting."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import Contender, of_ours, spent
from benchmarks.figures import Figure, gave_up
from benchmarks.peers.contest import life, rivals
from benchmarks.rounds import interleave
from benchmarks.stand import Plan

__all__ = ["batches"]

_SIZES = (1, 2, 5, 10, 100)


def batches(plan: Plan) -> list[Figure]:
    """Measure CPU, socket reads and commands of the server per message, by batch size.

    Ours are sent in such batches as well; peers that take several at a time are sent to one by one, as they have no
    other call.
    """
    contenders: dict[str, Contender] = {
        f"qworker, {size} at a time": partial(of_ours, plan.messages, size) for size in _SIZES
    }
    for peer in rivals(plan):
        if peer.batches:
            contenders |= {
                f"{peer.name}, {size} at a time": partial(
                    life, peer, plan, QWORKER_BENCH_BATCH=str(size)
                )
                for size in _SIZES
            }
        else:
            contenders[f"{peer.name}, no such setting"] = partial(life, peer, plan)
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        figure
        for contender in samples.having("cpu_us")
        for figure in spent("batches", samples, contender)
    ]
    return [*figures, *gave_up("batches", samples.gave_up)]
