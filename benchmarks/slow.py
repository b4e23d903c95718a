"""slow: handlers that wait 20 ms, 64 at once as threads and as coroutines, 8 in processes; and 10 ms and 100 ms.

Most handlers take longer than their message's way: what counts then is that as many of them run as may, and what each
message costs the server when it comes and goes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.apps import amarking, marking
from benchmarks.contenders import Contender
from benchmarks.figures import Figure, Goal, at_least, at_most, gave_up, measured, ratio
from benchmarks.marks import Marks
from benchmarks.peers.catalog import Peer
from benchmarks.peers.contest import acking, best_acking, rivals, waiting
from benchmarks.rounds import Samples, interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = ["COROUTINES", "Case", "of_ours", "of_peer", "slow"]

#: A case takes no longer than that at its ideal rate.
_WORK_S = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """Handlers that wait `sleep_s`, `at_once` of them in each of `procs` processes; `least`: % of the ideal rate."""

    name: str
    spec: str
    sleep_s: float
    at_once: int
    procs: int = 1
    least: float = 95

    @property
    def ideal(self) -> float:
        """Messages per second, if nothing but the wait took time."""
        return self.procs * self.at_once / self.sleep_s

    def messages(self, plan: Plan) -> int:
        """Say how many messages there are: those of the plan, or what takes some seconds; three at least for each."""
        least = 3 * self.procs * self.at_once
        return max(least, min(plan.messages, int(_WORK_S * self.ideal)))


COROUTINES = Case("64 coroutines of 20 ms", "amarking", 0.02, 64)
_EIGHT = Case("8 processes of 20 ms", "marking", 0.02, 1, procs=8)
_CASES = (
    Case("64 threads of 20 ms in 2 processes", "marking", 0.02, 32, procs=2),
    COROUTINES,
    _EIGHT,
    Case("async, 100 of 10 ms", "amarking", 0.01, 100, least=90),
    Case("sync, 100 of 10 ms", "marking", 0.01, 100, least=90),
    Case("async, 1,000 of 100 ms", "amarking", 0.1, 1000, least=90),
)


def slow(plan: Plan) -> list[Figure]:
    """Measure the rate as a share of the ideal one, and server CPU per message from receive to ack.

    A peer runs 64 at once in one process; one that runs jobs one by one, in eight processes.
    """
    contenders: dict[str, Contender] = {case.name: partial(of_ours, plan, case) for case in _CASES}
    contenders |= {peer.name: partial(of_peer, plan, peer) for peer in rivals(plan)}
    samples = interleave(contenders, plan.rounds, plan.say)
    figures: list[Figure] = []
    for case in _CASES:
        figures += _told(samples, case.name, case, f"qworker, {case.name}", at_least(case.least))
    for peer in rivals(plan):
        if peer.name in samples.having("rate"):
            case = _case_of(peer)
            figures += _told(
                samples, peer.name, case, f"{peer.name}, {case.procs * case.at_once} of 20 ms", None
            )
    return [*figures, *_to_peers(plan, samples), *gave_up("slow", samples.gave_up)]


def of_ours(plan: Plan, case: Case) -> dict[str, float]:
    """Let a worker handle a full queue; returns the rate of starts, and what the server spent from receive to ack."""
    app = marking if case.spec == "marking" else amarking
    messages = case.messages(plan)
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
        words = ("--procs", str(case.procs), "--concurrency", str(case.at_once))
        with stand.qworker("run", f"benchmarks.apps:{case.spec}", *words, **environ):
            before = stand.spent()
            queue.resume()
            wait_until(lambda: not marks.missing())
            wait_until(lambda: not stand.stored(queue))
            spent = stand.spent() - before
        app.close()
    return {"rate": marks.steady_rate(case.procs * case.at_once), **spent.per(messages)}


def of_peer(plan: Plan, peer: Peer) -> dict[str, float]:
    """Let a peer's worker do the same."""
    case = _case_of(peer)
    few = replace(plan, messages=case.messages(plan))
    return waiting(peer, few, case.sleep_s, case.at_once, case.procs)


def _case_of(peer: Peer) -> Case:
    return _EIGHT if peer.one_by_one else COROUTINES


def _told(
    samples: Samples, contender: str, case: Case, measure: str, goal: Goal | None
) -> Iterator[Figure]:
    share = [100 * rate / case.ideal for rate in samples.of(contender, "rate")]
    yield measured("slow", measure, share, "% of the ideal rate", goal)
    cpu = samples.of(contender, "cpu_us")
    yield measured("slow", f"{measure}: server CPU", cpu, "µs/message")


def _to_peers(plan: Plan, samples: Samples) -> Iterator[Figure]:
    if best := best_acking(plan, samples, "rate"):
        ours, theirs = samples.of(COROUTINES.name, "rate"), samples.of(best, "rate")
        measure = f"{COROUTINES.name} to the best peer with acks, {best}"
        yield ratio("slow", measure, ours, theirs, at_least(1))
    peers = acking(plan, samples, "cpu_us")
    if leanest := min(peers, key=lambda peer: median(samples.of(peer, "cpu_us")), default=""):
        theirs = samples.of(leanest, "cpu_us")
        for case in _CASES[:3]:
            measure = f"server CPU, {case.name}, to the leanest peer with acks, {leanest}"
            yield ratio("slow", measure, samples.of(case.name, "cpu_us"), theirs, at_most(1))
