"""seed: 1,000 messages taken by fifties and decoded: a receive with acks, and ways of LPOP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.figures import Figure, at_least, measured, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand

__all__ = ["seed"]

_TAKEN = 50
_BODY = msgspec.json.encode({"number": 1, "pad": PAD})


def seed(plan: Plan) -> list[Figure]:
    """Measure messages per second of one client."""
    ours = "qworker, receive and ack"
    ways: dict[str, tuple[Callable[[Any, int], int], float]] = {
        "pipelined LPOP, no acks": (_pipelined, 1.2),
        "consecutive LPOP, no acks": (_consecutive, 10),
        "pipelined LPOP, lease and ack": (_leased, 2.5),
    }
    contenders = {ours: lambda: _ours(plan.messages)}
    for name, (way, _) in ways.items():
        contenders[name] = lambda way=way: _with_redis(plan.messages, way)  # type: ignore[misc]
    samples = interleave(contenders, plan.rounds, plan.say)
    rates = samples.of(ours, "rate")
    return [
        *(measured("seed", each, samples.of(each, "rate"), "messages/s") for each in contenders),
        *(
            ratio("seed", f"to {name}", rates, samples.of(name, "rate"), at_least(bound))
            for name, (_, bound) in ways.items()
        ),
    ]


def _ours(messages: int) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()
        queue.send_all([_BODY] * (messages + _TAKEN))
        queue.ack(*queue.receive(_TAKEN))
        begun, left = time.perf_counter(), messages
        while left > 0:
            received = queue.receive(min(_TAKEN, left))
            left -= len([each.json() for each in received])
            queue.ack(*received)
        return {"rate": messages / (time.perf_counter() - begun)}


def _with_redis(messages: int, take: Callable[[Any, int], int]) -> dict[str, float]:
    with Stand() as stand:
        stand.redis.rpush("seed", *([_BODY] * messages))
        begun, left = time.perf_counter(), messages
        while left > 0:
            left -= take(stand.redis, min(_TAKEN, left))
        return {"rate": messages / (time.perf_counter() - begun)}


def _pipelined(redis: Any, count: int) -> int:
    with redis.pipeline(transaction=False) as pipeline:
        for _ in range(count):
            pipeline.lpop("seed")
        return len([msgspec.json.decode(item) for item in pipeline.execute()])


def _consecutive(redis: Any, count: int) -> int:
    return len([msgspec.json.decode(redis.lpop("seed")) for _ in range(count)])


def _leased(redis: Any, count: int) -> int:
    """Take, note what was taken and until when, and forget it again: what a client does without scripts."""
    with redis.pipeline(transaction=False) as pipeline:
        for _ in range(count):
            pipeline.lpop("seed")
        items = pipeline.execute()
        for number, item in enumerate(items):
            pipeline.zadd("deadlines", {str(number): time.time() + 30})
            pipeline.hset("taken", str(number), item)
        pipeline.execute()
        done = len([msgspec.json.decode(item) for item in items])
        for number in range(count):
            pipeline.zrem("deadlines", str(number))
            pipeline.hdel("taken", str(number))
        pipeline.execute()
    return done
