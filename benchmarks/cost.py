"""cost: what a message costs the server over its life (send, receive, ack), in batches of 100."""

from __future__ import annotations

from benchmarks.apps import app
from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.peers.contest import acking, life, rivals
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = ["cost"]

_BATCH = 100
_OURS = "qworker"
_FLOOR = "LPUSH + RPOP, pipelines of 100"


def cost(plan: Plan) -> list[Figure]:
    """Measure CPU, socket reads and commands of the server per message, beside two bare commands a message."""
    contenders = {
        _OURS: lambda: _ours(plan.messages),
        _FLOOR: lambda: _floor(plan.messages),
        **{peer.name: lambda peer=peer: life(peer, plan) for peer in rivals(plan)},
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for name in samples.having("cpu_us"):
        bound = at_most(0.03) if name == _OURS else None
        figures += [
            measured("cost", f"{name}: server CPU", samples.of(name, "cpu_us"), "µs/message"),
            measured(
                "cost", f"{name}: round trips", samples.of(name, "round_trips"), "/message", bound
            ),
            measured("cost", f"{name}: commands", samples.of(name, "commands"), "/message"),
        ]
    ours = samples.of(_OURS, "cpu_us")
    floor = samples.of(_FLOOR, "cpu_us")
    figures.append(ratio("cost", "server CPU to LPUSH + RPOP", ours, floor, at_most(2.5)))
    acks = acking(plan, samples, "cpu_us")
    if best := min(acks, key=lambda name: min(samples.of(name, "cpu_us")), default=""):
        theirs = samples.of(best, "cpu_us")
        measure = f"server CPU to the best peer with acks, {best}"
        figures.append(ratio("cost", measure, ours, theirs, at_most(0.125)))
    return figures


def _ours(messages: int) -> dict[str, float]:
    with Stand() as stand:
        app.connect_with(stand.factory)
        queue, task = app.queue("drain"), app.tasks["noop"]
        queue.pause("out")
        with stand.qworker("run", "benchmarks.apps:app", "--procs", "1", "--batch", str(_BATCH)):
            before = stand.spent()
            for first in range(0, messages, _BATCH):
                calls = [task.call(number, PAD) for number in range(first, first + _BATCH)]
                task.send_many(calls)
            queue.resume()
            wait_until(lambda: not stand.stored(queue), step_s=0.05)
            spent = stand.spent() - before
            acked = queue.inspect().stats["acked"]
        app.close()
    if acked != messages // _BATCH * _BATCH:
        raise RuntimeError(f"{acked} acked of {messages} messages")
    return spent.per(messages)


def _floor(messages: int) -> dict[str, float]:
    body = app.tasks["noop"].signature.encode((1, PAD), {})
    with Stand() as stand:
        stand.redis.ping()
        before = stand.spent()
        for words in (("LPUSH", "floor", body), ("RPOP", "floor")):
            for _ in range(0, messages, _BATCH):
                with stand.redis.pipeline(transaction=False) as pipeline:
                    for _ in range(_BATCH):
                        pipeline.execute_command(*words)
                    pipeline.execute()
        return (stand.spent() - before).per(messages)
