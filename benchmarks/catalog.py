"""The benchmarks by name: how much each measures by default, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.batches import batches
from benchmarks.cost import cost
from benchmarks.crash import crash
from benchmarks.dashboard import dashboard
from benchmarks.delayed import delayed
from benchmarks.drain import Variant, drain
from benchmarks.expire import expire
from benchmarks.fairness import fairness
from benchmarks.figures import Figure
from benchmarks.groups import groups
from benchmarks.idle import idle
from benchmarks.journal import journal
from benchmarks.length import length
from benchmarks.limits import limits
from benchmarks.lone import lone
from benchmarks.many import many
from benchmarks.memory import memory
from benchmarks.network import network
from benchmarks.pauses import pauses
from benchmarks.queues import queues
from benchmarks.recover import recover
from benchmarks.resume import resume
from benchmarks.runs import runs
from benchmarks.scrape import scrape
from benchmarks.seed import seed
from benchmarks.send import send
from benchmarks.slow import slow
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

    def measure(self, plan: Plan, *, quick: bool = False) -> list[Figure]:
        """Measure; 0 messages or rounds are the default, or if it is to be quick a tenth of that and one round."""
        messages = plan.messages or (max(1, self.messages // 10) if quick else self.messages)
        rounds = plan.rounds or (1 if quick else self.rounds)
        return self.run(replace(plan, messages=messages, rounds=rounds))


def _drain(**given: Any) -> Callable[[Plan], list[Figure]]:
    return partial(drain, variant=Variant(**given))


def _report(name: str, unit: str = "messages/s", **given: Any) -> Callable[[Plan], list[Figure]]:
    """Run a benchmark that reports rows of rates; imported when it runs, as most of them need Spark."""

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
        return figures

    return run


_DRAIN = "one process, a handler that does nothing, at least once"

#: By name, as the command line has it.
BENCHMARKS = {
    "drain": Benchmark(_DRAIN, _drain(), 200_000),
    "drain --async": Benchmark(f"{_DRAIN}, async", _drain(is_async=True), 100_000),
    "drain --procs 2": Benchmark("the same with two processes", _drain(procs=2), 200_000),
    "cost": Benchmark("server CPU, round trips and commands of a message's life", cost, 50_000),
    "lone": Benchmark("the same, one message at a time", lone, 5_000),
    "batches": Benchmark("the same in batches of 1 to 100", batches, 5_000),
    "send": Benchmark("one at a time, a thousand a call, as coroutines", send, 50_000),
    "idle": Benchmark("from a send to the handler, one each 50 ms", idle, 100),
    "slow": Benchmark("handlers that wait 20 ms, 10 ms or 100 ms", slow, 20_000),
    "network": Benchmark("drain, send, idle and slow at 1 and 5 ms", network, 100_000),
    "delayed": Benchmark(
        "a million overdue, a stream, and many at one instant", delayed, 1_000_000
    ),
    "groups": Benchmark("messages of groups, beside some without", groups, 100_000),
    "fairness": Benchmark("a small tenant beside 100,000 messages of others", fairness, 100_000),
    "limits": Benchmark("a rate that two processes share, beside other limiters", limits, 2_000, 1),
    "expire": Benchmark("leases of 100 messages run out at once", expire, 100_000),
    "queues": Benchmark("10,000 queues while nothing happens", queues, 10_000),
    "many": Benchmark("a worker of 1, 100 and 2,000 queues, a message a second", many, 30),
    "scrape": Benchmark("/metrics with 10,000 queues, and of a worker with 2,000", scrape, 10_000),
    "dashboard": Benchmark("the dashboard with 1,000 queues: a page, viewers", dashboard, 1_000, 1),
    "length": Benchmark("cost of a message in longer and longer queues", length, 10_000_000, 1),
    "memory": Benchmark("bytes of a message, ready, delayed, unacked", memory, 1_000_000, 1),
    "pauses": Benchmark("how long single calls hold the server up", pauses, 1_000_000, 1),
    "recover": Benchmark("a child, and a host, killed with messages in flight", recover, 200, 1),
    "resume": Benchmark("every tenth effect of flows killed by SIGKILL", resume, 100, 1),
    "runs": Benchmark(
        "chains, groups, runs and results, by CPU of worker and server", runs, 10_000
    ),
    "crash": Benchmark("a server killed after 2,000 ms of sends, by its settings", crash, 2_000),
    "seed": Benchmark("taking by fifties, beside ways of LPOP", seed, 10_000, 5),
    "start": Benchmark("from the start of a worker to its first message", start, 1, 5),
    "child": Benchmark(
        "CPU of a child by kind of handler", _report("child", "messages/CPU second"), 50_000
    ),
    "journal": Benchmark("what a journal that is on costs a drain", journal, 200_000),
    "bulk": Benchmark("Spark sending a Parquet file exactly once", _report("bulk"), 1_000_000),
    "archive": Benchmark(
        "a journal to Parquet", _report("archive", "events/s", profile=True), 1_000_000
    ),
}
