"""pauses: how long one call keeps other clients waiting, in a queue of a million messages and with large bodies.

The server counts the microseconds of each command, those of scripts in full, and is asked after every call. What the
socket takes is not among them, but the time in which other processes had its core is. The CPU time of the server's
thread has it the other way round. The smaller of the two counts: neither is less than what others wait on an idle
machine. A prober, which calls meanwhile, waits for all of it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.pauses_verbs import VERBS, Load
from benchmarks.prober import probing
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.command import Command

__all__ = ["pauses"]

_SMALL = "small"
#: Sizes of large bodies, in bytes.
_LARGE = {"1 MiB": 2**20, "4 MiB": 4 * 2**20}
_LARGEST, _BODIES = max(_LARGE.values()), 32
#: Plain commands that are reported: those that read or write messages.
_PLAIN = (
    "ZADD",
    "HGETALL",
    "LMOVE",
    "LPOP",
    "LRANGE",
    "RPUSH",
    "SET",
    "XRANGE",
    "XREVRANGE",
    "ZRANGE",
    "ZRANGEBYSCORE",
)
_FLOOR = "floor: script that copies one"
_MEASURES = {"p50": None, "p99": at_most(5), "max": at_most(20)}


class _Watch(Client):
    """A client that notes how many milliseconds each of its calls took the server, by verb, and script or command."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand.factory)
        self.verb = ""
        self.took_ms: dict[tuple[str, str], list[float]] = {}
        self._redis = stand.redis
        self._thread_s = stand.thread_s
        self._before = self._read()

    def _attempt(self, lane: Any, command: Command[Any], *args: Any, **options: Any) -> Any:
        began_s = self._thread_s()
        result = super()._attempt(lane, command, *args, **options)
        name = command.script.name if command.script else str(command.args[0])
        called, after = "evalsha" if command.script else name.lower(), self._read()
        if self.verb and (command.script or name in _PLAIN):
            took_ms = (after[called] - self._before.get(called, 0)) / 1000
            # The thread sleeps again: it has answered what was asked after the call.
            took_ms = min(took_ms, 1000 * (self._thread_s() - began_s))
            self.took_ms.setdefault((self.verb, name), []).append(took_ms)
        self._before = after
        return result

    def _read(self) -> dict[str, int]:
        """Read how many microseconds each command has taken so far."""
        stats = self._redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["usec"] for name, stat in stats.items()}


def pauses(plan: Plan) -> list[Figure]:
    """Measure how long the server is busy with each script and command of each verb."""
    large = min(_BODIES, max(8, plan.messages // 100))
    contenders = {_SMALL: lambda: _measure(plan.messages)}
    contenders |= {name: partial(_measure, large, _LARGE[name]) for name in _LARGE}
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for size in contenders:
        called = f"{plan.messages:,} small" if size == _SMALL else size
        for name in samples.measures(size):
            call, _, measure = name.rpartition(": ")
            of_floor = call.startswith("floor: ")
            goal = None if of_floor else _MEASURES.get(measure)
            took = samples.of(size, name)
            figures.append(measured("pauses", f"{called}, {name}", took, "ms", goal))
            if size in _LARGE and measure == "p50" and not of_floor:
                least = samples.of(size, f"{_FLOOR}: p50")
                figures.append(ratio("pauses", f"{called}, {call}: to the copy", took, least, None))
    return figures


def _measure(messages: int, body_bytes: int = 0) -> dict[str, float]:
    """Measure with small messages, or with bodies of this size."""
    with Stand() as stand:
        watch = _Watch(stand)
        queue = Queue(watch, NAMESPACE, "work")
        queue.create(visibility="1h", maxsize=2 * _LARGEST, max_receives=1000)
        watch.verb = "send"
        load = Load(stand, watch, queue, _fill(queue, messages, body_bytes), body_bytes > 0)
        with probing(stand) as probes:
            begun = time.monotonic()
            for verb, run in VERBS.items():
                watch.verb = verb
                run(load)
            ended = time.monotonic()
        watch.close()
        left = stand.queue().inspect()
        if left.ready + left.suspect + left.delayed + left.leases + left.dead:
            raise RuntimeError(f"{left} of {messages} messages")
    found = {}
    for (verb, name), took_ms in watch.took_ms.items():
        found[f"{verb}: {name}: p50"] = quantile(took_ms, 0.5)
        found[f"{verb}: {name}: p99"] = quantile(took_ms, 0.99)
        found[f"{verb}: {name}: max"] = max(took_ms)
    found["another client waited at most"] = probes.longest_ms(begun, ended)
    return found


def _fill(queue: Queue, messages: int, body_bytes: int) -> list[str]:
    if body_bytes:
        # Text, as what is sent often is: who searches it for a space stops at every word.
        words = b'{"text":"' + b"a word " * (body_bytes // 7) + b'"}'
        return [queue.send(words) for _ in range(messages)]
    return queue.send_many({"number": number, "pad": PAD} for number in range(messages))
