"""seed: messages taken by fifties and decoded: a pop, a receive with acks, and ways of LPOP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.figures import Figure, at_least, measured, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand
from qworker.client.message import Message
from qworker.client.queue import Queue

__all__ = ["seed"]

_TAKEN = 50
_POP, _ACK = "qworker, pop", "qworker, receive and ack"
_BODY = msgspec.json.encode({"number": 1, "pad": PAD})


def seed(plan: Plan) -> list[Figure]:
    """Measure messages per second of one client."""
    contenders = {
        _POP: lambda: _ours(plan.messages, lambda queue, count: queue.pop(count)),
        _ACK: lambda: _ours(plan.messages, _receive_and_ack),
    }
    for name, (_, way, _) in _WAYS.items():
        contenders[name] = lambda way=way: _with_redis(plan.messages, way)  # type: ignore[misc]
    samples = interleave(contenders, plan.rounds, plan.say)
    return [
        *(measured("seed", name, samples.of(name, "rate"), "messages/s") for name in contenders),
        *(
            ratio("seed", f"{ours.removeprefix('qworker, ')} to {name}", *sides, at_least(bound))
            for name, (ours, _, bound) in _WAYS.items()
            for sides in [(samples.of(ours, "rate"), samples.of(name, "rate"))]
        ),
    ]


def _ours(messages: int, take: Callable[[Queue, int], list[Message]]) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()
        queue.send_many([_BODY] * (messages + _TAKEN))
        take(queue, _TAKEN)
        begun, left = time.perf_counter(), messages
        while left > 0:
            taken = take(queue, min(_TAKEN, left))
            left -= len([message.json() for message in taken])
        return {"rate": messages / (time.perf_counter() - begun)}


def _receive_and_ack(queue: Queue, count: int) -> list[Message]:
    messages = queue.receive(count)
    queue.ack(*messages)
    return messages


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


#: By name: what is compared with it, what it does, and the least ratio.
_WAYS: dict[str, tuple[str, Callable[[Any, int], int], float]] = {
    "pipelined LPOP": (_POP, _pipelined, 1.2),
    "consecutive LPOP": (_POP, _consecutive, 10),
    "pipelined LPOP, lease and ack": (_ACK, _leased, 2.5),
}
