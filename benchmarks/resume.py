"""resume: every tenth effect of chains, groups, runs and gathers is killed by SIGKILL: how soon it begins again.

One flow at a time, so that what a time shows is the death of a child and not the messages before it: from the kill, by
the process itself, to the next start of the same effect, in a worker with a sibling or alone.
"""

from __future__ import annotations

from functools import partial

from benchmarks import deaths
from benchmarks.figures import Figure, at_most, measured
from benchmarks.lives import Life
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import Plan, Stand, wait_until

__all__ = ["resume"]

_GOAL_S = 0.2


def resume(plan: Plan) -> list[Figure]:
    """Measure from a death to the next start of its effect; each flow has to end."""
    contenders: dict[str, Life] = {
        f"{kind}, {procs} processes": partial(_killed, plan.messages, kind, procs)
        for kind in deaths.FLOWS
        for procs in (2, 1)
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for name in contenders:
        figures += [
            measured("resume", f"{name}: p50", samples.of(name, "p50"), "s"),
            measured("resume", f"{name}: p99", samples.of(name, "p99"), "s", at_most(_GOAL_S)),
            measured("resume", f"{name}: lost", samples.of(name, "lost"), "flows", at_most(0)),
        ]
    return figures


def _has_ended(marks: Marks, number: int) -> bool:
    return marks.times(deaths.MARKS * number)[2] > 0.0


def _killed(flows: int, kind: str, procs: int) -> dict[str, float]:
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, deaths.MARKS * flows)
        deaths.app.connect_with(stand.factory)
        words = ("run", "benchmarks.deaths:app", "--procs", str(procs))
        with stand.qworker(*words, QWORKER_BENCH_MARKS=str(path)):
            for number in range(flows):
                deaths.start(kind, number)
                wait_until(partial(_has_ended, marks, number))
        deaths.app.close()
    times = marks.times()
    died, again, ended = (times[at :: deaths.MARKS] for at in range(deaths.MARKS))
    away = sorted(later - earlier for earlier, later in zip(died, again, strict=True))
    return {"p50": away[len(away) // 2], "p99": quantile(away, 0.99), "lost": ended.count(0.0)}
