"""idle: how long a message waits when nothing else is to be done: one each 50 ms, from its send to its handler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.apps import marking
from benchmarks.figures import Figure, at_least, at_most, gave_up, measured, ratio
from benchmarks.marks import Marks
from benchmarks.peers.contest import WARM_UP, acking, idle_times, rivals
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import PAD, Plan, Stand, wait_until
from qworker.store.connections import ConnectionFactory

__all__ = ["PAUSE_S", "idle", "of_ours"]

#: Between two sends.
PAUSE_S = 0.05
_OURS, _FLOOR = "qworker", "redis-py RPUSH and BLPOP"


def idle(plan: Plan) -> list[Figure]:
    """Measure p50 and p99 of the wait, beside a process that does BLPOP and the peers."""
    contenders = {
        _OURS: lambda: _spread(of_ours(plan.messages)),
        _FLOOR: lambda: _spread(_floor(plan.messages)),
    }
    for peer in rivals(plan):
        contenders[peer.name] = lambda peer=peer: _spread(  # type: ignore[misc]
            idle_times(peer, plan, plan.messages, PAUSE_S)
        )
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured("idle", f"{contender}: {measure}", samples.of(contender, f"{measure}_ms"), "ms")
        for contender in samples.having("p50_ms")
        for measure in ("p50", "p99")
    ]
    for measure, goal in (("p50", at_most(1.5)), ("p99", at_most(2))):
        ours = samples.of(_OURS, f"{measure}_ms")
        floor = samples.of(_FLOOR, f"{measure}_ms")
        figures.append(ratio("idle", f"{measure} to {_FLOOR}", ours, floor, goal))
        for name in acking(plan, samples, "p50_ms"):
            theirs = samples.of(name, f"{measure}_ms")
            figures.append(ratio("idle", f"{measure} of {name} to ours", theirs, ours, at_least(1)))
    return [*figures, *gave_up("idle", samples.gave_up)]


def _spread(seconds: list[float]) -> dict[str, float]:
    return {f"p{share:.0%}"[:-1] + "_ms": 1000 * quantile(seconds, share) for share in (0.5, 0.99)}


def _paced(marks: Marks, messages: int, send: Callable[[int], object]) -> list[float]:
    """Send to a consumer that runs, after as many messages to warm it up as a peer gets."""
    for number in range(WARM_UP):
        send(number)
    wait_until(lambda: all(marks.times()[:WARM_UP]))
    sent = []
    for number in range(WARM_UP, WARM_UP + messages):
        time.sleep(PAUSE_S)
        sent.append(time.monotonic())
        send(number)
    wait_until(lambda: not marks.missing())
    return [start - begun for start, begun in zip(marks.times(WARM_UP), sent, strict=True)]


def of_ours(messages: int) -> list[float]:
    """Send to an idle worker; returns the seconds from before each send to the start of its handler."""
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, messages + WARM_UP)
        marking.connect_with(stand.factory)
        task = marking.tasks["mark"]
        words = ("run", "benchmarks.apps:marking", "--procs", "1")
        with stand.qworker(*words, QWORKER_BENCH_MARKS=str(path)):
            times = _paced(marks, messages, lambda number: task.send(number, PAD))
        marking.close()
    return times


def _floor(messages: int) -> list[float]:
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, messages + WARM_UP)
        with (
            stand.start("benchmarks.idle", stand.url, str(path)),
            ConnectionFactory(stand.url).redis() as redis,
        ):
            return _paced(marks, messages, lambda number: redis.rpush("floor", number))


def main(url: str, path: str) -> None:
    """Take items with BLPOP, and note when."""
    redis, marks = ConnectionFactory(url).redis(), Marks(Path(path))
    while True:
        if item := redis.blpop(["floor"], 1):
            marks.started(int(item[1]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
