"""send: how fast one producer process sends, one at a time, a thousand a call, and as coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from benchmarks.apps import app
from benchmarks.contenders import Contender
from benchmarks.figures import Figure, at_least, gave_up, measured, ratio
from benchmarks.peers.catalog import Peer
from benchmarks.peers.contest import Contest, best_acking, rivals
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand
from qworker.store.connections import ConnectionFactory

__all__ = ["one_at_a_time", "send"]

_FLOOR = "redis-py RPUSH"
_ONE, _MANY, _ASYNC = "qworker, one at a time", "qworker, 1,000 a call", "qworker, asend"
_AT_ONCE = 100


def send(plan: Plan) -> list[Figure]:
    """Measure sends per second, beside a bare RPUSH of the same bytes and the peers' sends."""
    few = max(1, plan.messages // 10)
    contenders: dict[str, Contender] = {
        _FLOOR: lambda: _timed(few, _floor),
        _ONE: lambda: one_at_a_time(few),
        _MANY: lambda: _timed(plan.messages, _many),
        _ASYNC: lambda: _timed(few, _many_coroutines),
        **{peer.name: partial(_peer, peer, plan, few) for peer in rivals(plan)},
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured("send", contender, samples.of(contender, "rate"), "messages/s")
        for contender in samples.having("rate")
    ]
    figures += [
        measured(
            "send", f"{contender}, its bulk call", samples.of(contender, "bulk_rate"), "messages/s"
        )
        for contender in samples.having("bulk_rate")
    ]
    one, floor = samples.of(_ONE, "rate"), samples.of(_FLOOR, "rate")
    figures.append(ratio("send", f"one at a time to {_FLOOR}", one, floor, at_least(0.75)))
    # Most have no bulk call: then theirs is one at a time.
    measure = "bulk_rate" if samples.having("bulk_rate") else "rate"
    if best := best_acking(plan, samples, measure):
        many, theirs = samples.of(_MANY, "rate"), samples.of(best, measure)
        how = "bulk call" if measure == "bulk_rate" else "send"
        figures.append(
            ratio(
                "send", f"1,000 a call to the best peer's {how}, {best}", many, theirs, at_least(10)
            )
        )
    return [*figures, *gave_up("send", samples.gave_up)]


def one_at_a_time(messages: int) -> dict[str, float]:
    """Send each message by its own call; returns the rate."""
    return _timed(messages, _one)


def _timed(messages: int, work: Callable[[Stand, int], float]) -> dict[str, float]:
    with Stand() as stand:
        app.connect_with(stand.factory)
        seconds = work(stand, messages)
        app.close()
    return {"rate": messages / seconds}


def _floor(stand: Stand, messages: int) -> float:
    body = app.tasks["noop"].signature.encode((1, PAD), {})
    with ConnectionFactory(stand.url).redis() as redis:
        redis.ping()
        begun = time.perf_counter()
        for _ in range(messages):
            redis.rpush("floor", body)
        return time.perf_counter() - begun


def _one(stand: Stand, messages: int) -> float:
    task = app.tasks["noop"]
    task.send(0, PAD)
    begun = time.perf_counter()
    for number in range(messages):
        task.send(number, PAD)
    return time.perf_counter() - begun


def _many(stand: Stand, messages: int) -> float:
    task = app.tasks["noop"]
    task.send(0, PAD)
    begun = time.perf_counter()
    for first in range(0, messages, 1000):
        last = min(first + 1000, messages)
        task.send_many([task.call(number, PAD) for number in range(first, last)])
    return time.perf_counter() - begun


def _many_coroutines(stand: Stand, messages: int) -> float:
    task = app.tasks["noop"]

    async def sending(first: int) -> None:
        for number in range(first, messages, _AT_ONCE):
            await task.asend(number, PAD)

    async def run() -> float:
        await task.asend(0, PAD)
        begun = time.perf_counter()
        await asyncio.gather(*(sending(first) for first in range(_AT_ONCE)))
        seconds = time.perf_counter() - begun
        await app.aclose()
        return seconds

    return asyncio.run(run())


def _peer(peer: Peer, plan: Plan, messages: int) -> dict[str, float]:
    jobs = min(messages, peer.jobs)
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs)
        rates = {"rate": jobs / contest.measured()}
        if bulk_s := contest.measured("bulk"):
            rates["bulk_rate"] = jobs / bulk_s
    return rates
