"""concurrent: handlers that wait: 100 in flight of 10 ms each, as coroutines and as threads, and 1,000 of 100 ms."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.apps import amarking, marking
from benchmarks.figures import Figure, at_least, measured, ratio
from benchmarks.marks import Marks
from benchmarks.peers.contest import best_acking, rivals, waiting
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = ["concurrent"]


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    spec: str
    sleep_s: float
    at_once: int

    @property
    def ideal(self) -> float:
        return self.at_once / self.sleep_s


_CASES = (
    _Case("async, 100 of 10 ms", "amarking", 0.01, 100),
    _Case("sync, 100 of 10 ms", "marking", 0.01, 100),
    _Case("async, 1,000 of 100 ms", "amarking", 0.1, 1000),
)


def concurrent(plan: Plan) -> list[Figure]:
    """Measure the rate of handlers that wait, as a share of what their number and their wait allow."""
    contenders = {case.name: lambda case=case: _ours(plan.messages, case) for case in _CASES}
    first = _CASES[0]
    for peer in rivals(plan):
        contenders[peer.name] = lambda peer=peer: waiting(peer, plan, first.sleep_s, first.at_once)
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for case in _CASES:
        rates = samples.of(case.name, "rate")
        share = [100 * rate / case.ideal for rate in rates]
        goal = at_least(90)
        figures.append(measured("concurrent", case.name, share, "% of the ideal rate", goal))
    for peer in rivals(plan):
        if peer.name in samples.having("rate"):
            share = [100 * rate / first.ideal for rate in samples.of(peer.name, "rate")]
            measure = f"{peer.name}, 100 of 10 ms"
            figures.append(measured("concurrent", measure, share, "% of the ideal rate"))
    if best := best_acking(plan, samples, "rate"):
        ours, theirs = samples.of(first.name, "rate"), samples.of(best, "rate")
        measure = f"async to the best peer with acks, {best}"
        figures.append(ratio("concurrent", measure, ours, theirs, at_least(1)))
    return figures


def _ours(messages: int, case: _Case) -> dict[str, float]:
    app = marking if case.spec == "marking" else amarking
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, messages)
        app.connect_with(stand.factory)
        queue, task = app.queue("mark"), app.tasks["mark"]
        queue.pause("out")
        task.send_many(task.call(number, PAD) for number in range(messages))
        environ = {
            "QWORKER_BENCH_MARKS": str(path),
            "QWORKER_BENCH_SLEEP_S": str(case.sleep_s),
        }
        words = ("--procs", "1", "--concurrency", str(case.at_once))
        with stand.qworker("run", f"benchmarks.apps:{case.spec}", *words, **environ):
            queue.resume()
            wait_until(lambda: not marks.missing())
            wait_until(lambda: not stand.stored(queue))
        app.close()
    times = marks.times()
    return {"rate": (messages - 1) / (max(times) - min(times))}
