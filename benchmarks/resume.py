"""resume: every tenth effect of chains, groups, runs and gathers is killed by SIGKILL: how soon it begins again.

One flow at a time, each once all processes of the worker receive, so that what a time shows is one death, and neither
the messages nor the deaths before it: from the kill, by the process itself, to the next start of the same effect. A
sibling begins it, or, in a worker of one process, the next process once it has imported the app, from bytecode, as
after an installation.
"""

from __future__ import annotations

from functools import partial
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import deaths
from benchmarks.contenders import Contender
from benchmarks.figures import Figure, at_most, measured
from benchmarks.installed import as_installed
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import Plan, Stand, wait_until

__all__ = ["resume"]

_GOAL_S = 0.2
#: How often to ask whether a worker is whole again.
_LOOK_S = 0.05


def resume(plan: Plan) -> list[Figure]:
    """Measure from a death to the next start of its effect; each flow has to end."""
    contenders: dict[str, Contender] = {
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


def _ready(url: str) -> float:
    """How many processes of a worker receive."""
    with urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    return next(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "qworker_children" and sample.labels["state"] == "running"
    )


def _killed(flows: int, kind: str, procs: int) -> dict[str, float]:
    with Stand() as stand, as_installed() as installed:
        path = stand.directory / "marks"
        marks = Marks.create(path, deaths.MARKS * flows)
        deaths.app.connect_with(stand.factory)
        words = ("run", "benchmarks.deaths:app", "--procs", str(procs))
        environ = {"QWORKER_BENCH_MARKS": str(path), "QWORKER_LOG_FORMAT": "json", **installed}
        with stand.qworker(*words, **environ) as worker:
            url = worker.metrics_url()
            for number in range(flows):
                wait_until(lambda: _ready(url) >= procs, step_s=_LOOK_S)
                deaths.start(kind, number)
                wait_until(partial(_has_ended, marks, number))
        deaths.app.close()
    times = marks.times()
    died, again, ended = (times[at :: deaths.MARKS] for at in range(deaths.MARKS))
    away = sorted(later - earlier for earlier, later in zip(died, again, strict=True))
    return {"p50": away[len(away) // 2], "p99": quantile(away, 0.99), "lost": ended.count(0.0)}
