"""runs: chains of five steps, groups of ten calls, runs of ten steps and kept results, beside what peers have of them.

What counts is the CPU that a step takes, of worker and server together: a rate on a machine with two cores mixes the
peer's own pace with what its server takes from it. One worker process of one handler at a time. Redis has no
persistence here, for all; PostgreSQL has its defaults and syncs each commit, so that its steps are as durable as those
of a Redis with `appendfsync always`. Its CPU does not include the wait for the disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks import flows
from benchmarks.contenders import Contender
from benchmarks.figures import Figure, at_least, at_most, gave_up, measured, ratio
from benchmarks.flows import CHAIN_STEPS, GROUP_CALLS, RUN_STEPS
from benchmarks.marks import Marks
from benchmarks.peers.catalog import DBOS, PEERS, Peer
from benchmarks.peers.contest import WARM_UP, Contest
from benchmarks.peers.environment import ROOT, python_of
from benchmarks.peers.postgres import postgres
from benchmarks.rounds import ContenderError, Samples, interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until
from qworker import chain, group
from qworker.engine.command import Command
from qworker.engine.receive import settle_receive
from qworker.engine.run import StepRecord, record_step
from qworker.engine.settle import Outcomes, settle
from qworker.wire.envelope import Envelope

__all__ = ["runs"]

_DBOS: Final = "DBOS on PostgreSQL"
_LAST_ACKS_S: Final = 0.3
#: Messages or steps of each kind of flow; of a group its calls and the callback.
_STEPS: Final = {"chain": CHAIN_STEPS, "group": GROUP_CALLS + 1, "run": RUN_STEPS, "result": 1}
_PEERS: Final = ("celery", "dramatiq")


def runs(plan: Plan) -> list[Figure]:
    """Measure CPU of worker and server for each step, and compare steps per CPU second with those of peers."""
    contenders: dict[str, Contender] = {
        **{f"qworker, {kind}": partial(_ours, plan, kind) for kind in _STEPS},
        "qworker, calls": partial(_calls, plan),
        "qworker, asleep": partial(_asleep, plan),
    }
    for name in _PEERS:
        if name in plan.peers:
            for kind in ("chain", "group", "result"):
                contenders[f"{name}, {kind}"] = partial(_peer, plan, PEERS[name], kind)
    if plan.peers:
        for kind in ("chain", "run"):
            contenders[f"{_DBOS}, {kind}"] = partial(_dbos, plan, kind)
    samples = interleave(contenders, plan.rounds, plan.say)
    return [*_figures(samples), *gave_up("runs", samples.gave_up)]


def _figures(samples: Samples) -> Iterator[Figure]:
    for contender in samples.having("step_us"):
        yield measured(
            "runs", f"{contender}: a step", samples.of(contender, "step_us"), "µs of CPU"
        )
        yield measured("runs", f"{contender}: rate", samples.of(contender, "rate"), "steps/s")
    for kind in _STEPS:
        peers = [name for name in samples.having("step_us") if name.endswith(f", {kind}")]
        peers.remove(f"qworker, {kind}")
        for peer in sorted(peers, key=lambda name: median(samples.of(name, "step_us"))):
            # Results have a goal beside Celery, the others beside the best peer.
            is_best = peer == min(peers, key=lambda name: median(samples.of(name, "step_us")))
            goal = at_least(5) if is_best and kind != "result" else None
            if peer == "celery, result":
                goal = at_least(10)
            measure = f"steps of a {kind} per CPU second, to {peer.rpartition(',')[0]}"
            theirs, own = samples.of(peer, "step_us"), samples.of(f"qworker, {kind}", "step_us")
            yield ratio("runs", measure, theirs, own, goal)
    steps, acks = samples.of("qworker, calls", "call_us"), samples.of("qworker, calls", "ack_us")
    yield ratio("runs", "server CPU of recording a step, to an ack", steps, acks, at_most(1.6))
    size = samples.of("qworker, asleep", "bytes")
    yield measured("runs", "a sleeping run of two steps", size, "bytes", at_most(500))


def _ours(plan: Plan, kind: str) -> dict[str, float]:
    """Let a worker of one process work off what was started while its queue was paused."""
    app, flows_in_all = flows.app, max(20, plan.messages // _STEPS[kind])
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, flows_in_all)
        app.connect_with(stand.factory)
        queue = app.queue("flow")
        queue.pause("out")
        for number in range(flows_in_all):
            _start(kind, number)
        words = ("run", "benchmarks.flows:app", "--procs", "1")
        with stand.qworker(*words, QWORKER_BENCH_MARKS=str(path)) as worker:
            before, worked = stand.spent(), worker.cpu_s()
            begun = time.monotonic()
            queue.resume()
            wait_until(lambda: not marks.missing())
            wait_until(lambda: not stand.stored(queue))
            spent, worked = stand.spent() - before, worker.cpu_s() - worked
        app.close()
    steps = flows_in_all * _STEPS[kind]
    seconds = max(marks.times()) - begun
    return {"step_us": (spent.cpu_s + worked) / steps * 1e6, "rate": steps / seconds}


def _start(kind: str, number: int) -> None:
    if kind == "chain":
        middle = [flows.step.then() for _ in range(3)]
        chain(flows.first.call(number, PAD), *middle, flows.last.then()).send()
    elif kind == "group":
        calls = (flows.first.call(number, PAD) for _ in range(GROUP_CALLS))
        group(calls, policy="successes").then(flows.gathered).send()
    elif kind == "run":
        flows.run.send(number, PAD)
    else:
        flows.kept.start(number, PAD)


def _peer(plan: Plan, peer: Peer, kind: str) -> dict[str, float]:
    """Let a peer's worker of one process do the same."""
    jobs = max(20, min(peer.jobs, plan.messages) // _STEPS[kind])
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs)
        with contest.workers() as workers:
            for worker in workers:
                worker.signal(signal.SIGSTOP)
            contest.send(kind, WARM_UP, jobs)
            before, worked = stand.spent(), sum(worker.cpu_s() for worker in workers)
            begun = time.monotonic()
            for worker in workers:
                worker.signal(signal.SIGCONT)
            times = contest.finish(workers)
            time.sleep(_LAST_ACKS_S)
            spent = stand.spent() - before
            worked = sum(worker.cpu_s() for worker in workers) - worked
    steps = jobs * _STEPS[kind]
    seconds = max(times) - begun
    return {"step_us": (spent.cpu_s + worked) / steps * 1e6, "rate": steps / seconds}


def _dbos(plan: Plan, kind: str) -> dict[str, float]:
    """Let DBOS run workflows of as many steps, in the process that starts them."""
    workflows = max(20, min(DBOS.jobs, plan.messages) // _STEPS[kind])
    python = python_of(DBOS, plan.say)
    words = [str(python), "-m", "benchmarks.peers.dbos", str(_STEPS[kind]), str(workflows)]
    with postgres(python) as server:
        before = server.cpu_s()
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "QWORKER_BENCH_POSTGRES": server.url},
            capture_output=True,
            text=True,
            check=False,
        )
        spent = server.cpu_s() - before
    if done.returncode:
        raise ContenderError(f"DBOS failed: {done.stderr.strip()[-400:]}")
    seconds, worked = map(float, done.stdout.split())
    steps = workflows * _STEPS[kind]
    return {"step_us": (spent + worked) / steps * 1e6, "rate": steps / seconds}


def _calls(plan: Plan) -> dict[str, float]:
    """Ack messages one by one, and record as many steps of a run: what each call costs the server."""
    with Stand() as stand:
        queue, client = stand.queue(), stand.client
        keys = queue.keys
        queue.send_many([b"x"] * (plan.messages + 1))
        batches = [
            client.execute(settle_receive(keys, client.ids.lease_id(), 1))
            for _ in range(plan.messages + 1)
        ]
        run, *others = batches
        envelope = Envelope.parse(run.items[0])
        assert envelope is not None
        steps = [
            StepRecord(envelope.id, run.lease_id, "0", f"same#{number}", b"7", keep_ms=1000)
            for number in range(plan.messages)
        ]
        acks = [settle(keys, [Outcomes(batch.lease_id, acks=["0"])]) for batch in others]
        return {
            "ack_us": _spent_us(stand, acks),
            "call_us": _spent_us(stand, [record_step(keys, step) for step in steps]),
        }


def _spent_us(stand: Stand, commands: Sequence[Command[Any]]) -> float:
    before = stand.spent()
    for command in commands:
        stand.client.execute(command)
    return (stand.spent() - before).per(len(commands))["cpu_us"]


def _asleep(plan: Plan) -> dict[str, float]:
    """Let runs fall asleep after two steps; returns the bytes of each."""
    # Of fewer, tables of keys that grow or shrink take more than the runs.
    app, sleepers = flows.app, max(1000, plan.messages // 10)
    with Stand() as stand:
        path = stand.directory / "marks"
        Marks.create(path, sleepers)
        app.connect_with(stand.factory)
        queue = app.queue("flow")
        words = ("run", "benchmarks.flows:app", "--procs", "1")

        def fall_asleep(asleep: int) -> None:
            for number in range(sleepers):
                flows.sleeper.send(number)
            wait_until(lambda: queue.inspect().delayed == asleep)

        with stand.qworker(*words, QWORKER_BENCH_MARKS=str(path)):
            # What a queue and its worker take does not belong to its runs.
            fall_asleep(sleepers)
            before = stand.memory()
            fall_asleep(2 * sleepers)
            used = stand.memory() - before
        app.close()
    return {"bytes": used / sleepers}
