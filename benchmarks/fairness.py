"""fairness: how long the messages of a small tenant wait beside a flood, and whether slots stand idle meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from benchmarks.figures import Figure, at_least, at_most, measured
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import PAD, Plan, Stand, wait_until
from qworker import QWorker

__all__ = ["fairness"]

_HANDLER_S, _AT_ONCE = 0.02, 8
_PAUSE_S, _OWN, _WARM_UP = 0.05, 150, 20
_UNLOADED: Final = "alone"
_TENANTS: Final = "10,000 tenants"
#: Where a message of the flood belongs, by its number; '' is nowhere.
_FLOODS: Final[dict[str, Callable[[int], str]]] = {
    "one tenant": lambda number: "big",
    "one tenant, over 1,000 groups": lambda number: f"big/{number % 1000}",
    "without a group": lambda number: "",
    _TENANTS: lambda number: f"t{number % 10_000}",
}


def fairness(plan: Plan) -> list[Figure]:
    """Measure the waits of a tenant that sends each 50 ms, beside floods of the plan's size.

    Eight handlers of 20 ms at a time, in one process. Goals: twice the own wait without a flood, and a handler's time;
    beside many tenants its turn comes after theirs, so there is no goal.
    """
    contenders = {_UNLOADED: lambda: _beside(None, 0)}
    for name, group_of in _FLOODS.items():
        # Of many tenants one message each: the small one has a turn in each round of all.
        flood = min(plan.messages, 10_000) if name == _TENANTS else plan.messages
        contenders[name] = lambda group_of=group_of, flood=flood: _beside(group_of, flood)  # type: ignore[misc]
    samples = interleave(contenders, plan.rounds, plan.say)
    alone_ms = samples.of(_UNLOADED, "p99_ms")
    bound = at_most(2 * sorted(alone_ms)[len(alone_ms) // 2] + 1000 * _HANDLER_S)
    figures = []
    for name in contenders:
        goal = bound if name in _FLOODS and name != _TENANTS else None
        for measure, its_goal in (("p50", None), ("p99", goal)):
            waits = samples.of(name, f"{measure}_ms")
            figures.append(measured("fairness", f"{name}: {measure}", waits, "ms", its_goal))
    for name in _FLOODS:
        busy = samples.of(name, "busy")
        figures.append(measured("fairness", f"{name}: slots in use", busy, "%", at_least(95)))
    return figures


def _beside(group_of: Callable[[int], str] | None, flood: int) -> dict[str, float]:
    app = QWorker("bench")

    @app.task(name="mark", queue="mark", group=lambda number, pad: _group(group_of, number, flood))
    async def mark(number: int, pad: str) -> None: ...

    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, flood + _WARM_UP + _OWN)
        app.connect_with(stand.factory)
        mark.send_many(mark.call(number, PAD) for number in range(flood))
        environ = {"QWORKER_BENCH_MARKS": str(path), "QWORKER_BENCH_SLEEP_S": str(_HANDLER_S)}
        words = ("run", "benchmarks.apps:amarking", "--procs", "1", "--concurrency", str(_AT_ONCE))
        with stand.qworker(*words, **environ):
            sent, own = [], range(flood, flood + _WARM_UP + _OWN)
            begun = time.monotonic()
            for number in own:
                time.sleep(_PAUSE_S)
                sent.append(time.monotonic())
                mark.send(number, PAD)
            until = time.monotonic()
            wait_until(lambda: not marks.missing(flood), limit_s=300)
        started = marks.times()
        app.close()
    waits = [at - before for at, before in zip(started[flood:], sent, strict=True)][_WARM_UP:]
    ran = sum(begun + 1 <= at < until for at in started)
    busy = 100 * ran * _HANDLER_S / _AT_ONCE / (until - begun - 1)
    return {
        "p50_ms": 1000 * quantile(waits, 0.5),
        "p99_ms": 1000 * quantile(waits, 0.99),
        "busy": busy,
    }


def _group(group_of: Callable[[int], str] | None, number: int, flood: int) -> str | None:
    if number >= flood or group_of is None:
        return "small"
    return group_of(number) or None
