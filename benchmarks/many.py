"""many: a worker of 1, 100 and 2,000 queues, with one message a second in all of them together."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.contenders import Contender
from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = ["many"]

_QUEUES = (1, 100, 2000)
_SETTLE_S = 3.0
#: Coprime to the numbers of queues: each message goes to a queue far from the last one's.
_STRIDE = 761
#: The golden ratio: pauses of 0.5 to 1.5 s that keep no step with any timer.
_GOLDEN = 0.618
_PARTS = ("worker", "server")


def many(plan: Plan) -> list[Figure]:
    """Measure from send to start, and the CPU of worker and server; `messages` of the plan are seconds as well."""
    contenders: dict[str, Contender] = {
        _named(queues): partial(_watched, plan.messages, queues) for queues in _QUEUES
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    # A round trip for the send, and one for the receive.
    p99 = at_most(25 + 2 * Stand.rtt_ms)
    for queues in _QUEUES:
        name = _named(queues)
        figures += [
            measured("many", f"{name}: p50", samples.of(name, "p50_ms"), "ms"),
            measured("many", f"{name}: p99", samples.of(name, "p99_ms"), "ms", p99),
        ]
        figures += [
            measured("many", f"{name}: {part}", samples.of(name, part), "% of a core")
            for part in _PARTS
        ]
    few, most = _named(_QUEUES[0]), _named(_QUEUES[-1])
    for part in _PARTS:
        measure = f"{part}, {most} to {few}"
        figures.append(
            ratio("many", measure, samples.of(most, part), samples.of(few, part), at_most(1.2))
        )
    return figures


def _named(queues: int) -> str:
    return f"{queues:,} queue{'s' * (queues > 1)}"


def _watched(messages: int, queues: int) -> dict[str, float]:
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, messages)
        words = ("run", "benchmarks.apps:crowd", "--procs", "1")
        environ = {"QWORKER_BENCH_TASKS": str(queues), "QWORKER_BENCH_MARKS": str(path)}
        with stand.qworker(*words, **environ) as worker:
            time.sleep(_SETTLE_S)
            before, server, begun = worker.cpu_s(), stand.spent(), time.monotonic()
            sent = []
            for number in range(messages):
                time.sleep(0.5 + number * _GOLDEN % 1)
                chosen = number * _STRIDE % queues
                queue = stand.queue(f"q{chosen:05}")
                sent.append(time.monotonic())
                queue.send({"task": f"crowd{chosen:05}", "args": [number, PAD]})
            wait_until(lambda: not marks.missing())
            seconds = time.monotonic() - begun
            spent = stand.spent() - server
            worker_s = worker.cpu_s() - before
    waits = [1000 * (start - at) for start, at in zip(marks.times(), sent, strict=True)]
    return {
        "p50_ms": quantile(waits, 0.5),
        "p99_ms": quantile(waits, 0.99),
        "worker": 100 * worker_s / seconds,
        "server": 100 * spent.cpu_s / seconds,
    }
