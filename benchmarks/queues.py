"""queues: what ten thousand queues cost a core while nothing happens, empty and with a message each."""

from __future__ import annotations

import time

from benchmarks.figures import Figure, at_most, measured
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand

__all__ = ["queues"]

_SETTLE_S = 3.0
_WATCHED_S = 5.0
_CASES = {"idle": 0, "one message each": 1}


def queues(plan: Plan) -> list[Figure]:
    """Measure the CPU of the daemon and of the server at the default tick; `messages` of the plan are queues."""
    contenders = {
        case: lambda held=held: _share(plan.messages, held) for case, held in _CASES.items()
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for case in _CASES:
        for who, bound in (("daemon", 2), ("server", 5)):
            measure = f"{plan.messages:,} queues, {case}: {who}"
            values = samples.of(case, who)
            figures.append(measured("queues", measure, values, "% of a core", at_most(bound)))
    return figures


def _share(queues: int, held: int) -> dict[str, float]:
    with Stand() as stand:
        for number in range(queues):
            queue = stand.queue(f"q{number}")
            if held:
                queue.send({"number": number, "pad": PAD})
            else:
                queue.create()
        with stand.qworker("daemon", "--durability", "off") as daemon:
            time.sleep(_SETTLE_S)
            before, server, begun = daemon.cpu_s(), stand.spent(), time.monotonic()
            time.sleep(_WATCHED_S)
            seconds = time.monotonic() - begun
            spent = stand.spent() - server
            return {
                "daemon": 100 * (daemon.cpu_s() - before) / seconds,
                "server": 100 * spent.cpu_s / seconds,
            }
