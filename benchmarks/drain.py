"""drain: how fast a consumer empties a full queue with a handler that does nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.apps import aio, app, grouped
from benchmarks.figures import Figure, at_least, at_most, gave_up, measured, ratio
from benchmarks.floor import ENVELOPE
from benchmarks.peers.contest import best_acking, life, rivals
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until
from qworker.store.connections import ConnectionFactory

__all__ = ["Variant", "drain", "of_ours"]

_OURS = "qworker"
_ONE = "qworker, 1 process"
_FLOOR = "redis-py with leases, no framework"
_BARE_FLOOR = "redis-py LPOP 100, msgspec"
_SLOW_FLOOR = "redis-py LPOP 100, json.loads"


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of the benchmark: processes, and whether the handler is a coroutine function."""

    procs: int = 1
    is_async: bool = False

    @property
    def name(self) -> str:
        """As the command line has it."""
        words = ["drain", "--async" * self.is_async, f"--procs {self.procs}" * (self.procs > 1)]
        return " ".join(filter(None, words))


def drain(plan: Plan, variant: Variant) -> list[Figure]:
    """Measure the rate, beside redis-py without acks and the peers with as many processes."""
    name = variant.name
    contenders = {_OURS: lambda: of_ours(plan.messages, variant)}
    if variant.procs > 1:
        contenders[_ONE] = lambda: of_ours(plan.messages, Variant(is_async=variant.is_async))
    contenders[_FLOOR] = lambda: _floor(plan.messages, "lease")
    contenders[_BARE_FLOOR] = lambda: _floor(plan.messages, "msgspec")
    contenders[_SLOW_FLOOR] = lambda: _floor(plan.messages, "json")
    for peer in rivals(plan):
        contenders[peer.name] = lambda peer=peer: life(peer, plan, variant.procs)  # type: ignore[misc]
    samples = interleave(contenders, plan.rounds, plan.say)
    ours = samples.of(_OURS, "rate")
    figures = [
        measured(name, contender, samples.of(contender, "rate"), "messages/s")
        for contender in samples.having("rate")
    ]
    floor = None if variant.procs > 1 else at_least(0.5 if variant.is_async else 0.7)
    figures += [
        ratio(name, f"to {_FLOOR}", ours, samples.of(_FLOOR, "rate"), floor),
        ratio(name, f"to {_BARE_FLOOR}, no acks", ours, samples.of(_BARE_FLOOR, "rate"), None),
        ratio(name, f"to {_SLOW_FLOOR}, no acks", ours, samples.of(_SLOW_FLOOR, "rate"), None),
    ]
    if variant.procs > 1:
        one = samples.of(_ONE, "cpu_us")
        figures += [
            ratio(name, "to one process", ours, samples.of(_ONE, "rate"), at_least(1.4)),
            ratio(
                name, "server CPU to one process", samples.of(_OURS, "cpu_us"), one, at_most(1.1)
            ),
        ]
    if best := best_acking(plan, samples, "rate"):
        goal = None if variant.procs > 1 else at_least(18 if variant.is_async else 25)
        theirs = samples.of(best, "rate")
        figures.append(ratio(name, f"to the best peer with acks, {best}", ours, theirs, goal))
    return [*figures, *gave_up(name, samples.gave_up)]


def of_ours(messages: int, variant: Variant, groups_of: int = 0) -> dict[str, float]:
    """Empty a full queue; returns the rate, and what the server spent on each message.

    `groups_of`: the messages are spread over so many groups; 0: they have none.
    """
    chosen, spec = (aio, "aio") if variant.is_async else (app, "app")
    with Stand() as stand:
        chosen.connect_with(stand.factory)
        queue, task = chosen.queue("drain"), chosen.tasks["noop"]
        queue.pause("out")
        if groups_of:
            sending = grouped(task.queue, groups_of)
            sending.connect_with(stand.factory)
            many = sending.tasks["noop"]
            many.send_many(many.call(number, PAD) for number in range(messages))
            sending.close()
        else:
            task.send_many(task.call(number, PAD) for number in range(messages))
        words = ("run", f"benchmarks.apps:{spec}", "--procs", str(variant.procs))
        with stand.qworker(*words) as worker:
            time.sleep(0.5)
            before = stand.spent()
            queue.resume()
            begun = time.perf_counter()

            def is_empty() -> bool:
                worker.check()
                return not stand.stored(queue)

            wait_until(is_empty)
            seconds = time.perf_counter() - begun
            spent = stand.spent() - before
            acked = queue.inspect().stats["acked"]
        chosen.close()
    if acked != messages:
        raise RuntimeError(f"{acked} acked of {messages} messages")
    return {"rate": messages / seconds, **spent.per(messages)}


def _floor(messages: int, decoder: str) -> dict[str, float]:
    body = app.tasks["noop"].signature.encode((1, PAD), {})
    if decoder == "lease":
        body = ENVELOPE + body
    with Stand() as stand:
        redis = ConnectionFactory(stand.url).redis()
        for first in range(0, messages, 1000):
            redis.rpush("floor", *[body] * min(1000, messages - first))
        redis.close()
        words = ("benchmarks.floor", stand.url, "floor", str(messages), decoder)
        process = stand.popen(*words)
        assert process.stdout is not None
        process.stdout.readline()
        out, _ = process.communicate("go\n")
    return {"rate": messages / float(out)}
