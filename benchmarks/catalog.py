"""The benchmarks by name: how much each measures by default, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.concurrent import concurrent
from benchmarks.cost import cost
from benchmarks.delayed import delayed
from benchmarks.drain import Variant, drain
from benchmarks.expire import expire
from benchmarks.figures import Figure, measured
from benchmarks.idle import idle
from benchmarks.length import length
from benchmarks.memory import memory
from benchmarks.queues import queues
from benchmarks.recover import recover
from benchmarks.seed import seed
from benchmarks.send import send
from benchmarks.stand import Plan
from benchmarks.start import start

__all__ = ["BENCHMARKS", "Benchmark"]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: one line about it, its function, and the messages and rounds that it takes by default."""

    about: str
    run: Callable[[Plan], list[Figure]]
    messages: int
    rounds: int = 3

    def measure(self, plan: Plan) -> list[Figure]:
        """Measure; 0 messages or rounds are the default."""
        messages, rounds = plan.messages or self.messages, plan.rounds or self.rounds
        return self.run(replace(plan, messages=messages, rounds=rounds))


def _drain(**given: Any) -> Callable[[Plan], list[Figure]]:
    return partial(drain, variant=Variant(**given))


def _report(name: str, unit: str = "messages/s", **given: Any) -> Callable[[Plan], list[Figure]]:
    """Run a benchmark that reports rows of rates; imported when it runs, as two of them need Spark."""

    def run(plan: Plan) -> list[Figure]:
        measure = getattr(import_module(f"benchmarks.{name}"), name)
        size: Any = [plan.messages] if name == "archive" else plan.messages
        result = measure(size, plan.rounds, say=plan.say, **given)
        figures = []
        for report in result.get("sizes", [result]):
            for row in report["rows"]:
                given_row = (row["messages_per_s"], unit, row["lowest"], row["highest"])
                figures.append(Figure(name, row["name"], *given_row))
            plan.say(str({key: value for key, value in report.items() if key != "rows"}))
        for mode, costs in result.get("cpu_us_per_message", {}).items():
            figures += [
                measured(name, f"journal {mode}: CPU of the {who}", [cost], "µs/message")
                for who, cost in costs.items()
            ]
        return figures

    return run


_DRAIN = "one process, a handler that does nothing, at least once"

#: By name, as the command line has it.
BENCHMARKS = {
    "drain": Benchmark(_DRAIN, _drain(), 200_000),
    "drain --async": Benchmark(f"{_DRAIN}, async", _drain(is_async=True), 100_000),
    "drain --procs 2": Benchmark("the same with two processes", _drain(procs=2), 200_000),
    "cost": Benchmark("server CPU, round trips and commands of a message's life", cost, 50_000),
    "send": Benchmark("one at a time, a thousand a call, as coroutines", send, 50_000),
    "idle": Benchmark("from a send to the handler, one each 50 ms", idle, 100),
    "concurrent": Benchmark("handlers that wait 10 ms or 100 ms", concurrent, 20_000),
    "delayed": Benchmark(
        "a million overdue, a stream, and many at one instant", delayed, 1_000_000
    ),
    "expire": Benchmark("leases of 100 messages run out at once", expire, 100_000),
    "queues": Benchmark("10,000 queues while nothing happens", queues, 10_000),
    "length": Benchmark("cost of a message in longer and longer queues", length, 10_000_000, 1),
    "memory": Benchmark("bytes of a message, ready, delayed, unacked", memory, 1_000_000, 1),
    "recover": Benchmark("a child, and a host, killed with messages in flight", recover, 200, 1),
    "seed": Benchmark("taking by fifties, beside ways of LPOP", seed, 10_000, 5),
    "start": Benchmark("from the start of a worker to its first message", start, 1, 5),
    "child": Benchmark(
        "CPU of a child by kind of handler", _report("child", "messages/CPU second"), 50_000
    ),
    "journal": Benchmark("what a journal that is on costs a drain", _report("journal"), 200_000),
    "bulk": Benchmark("Spark sending a Parquet file exactly once", _report("bulk"), 1_000_000),
    "archive": Benchmark(
        "a journal to Parquet", _report("archive", "events/s", profile=True), 1_000_000
    ),
}
