"""delayed: messages falling due: a million overdue at once, a stream of them, and ten thousand at one instant."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from benchmarks.figures import Figure, at_least, at_most, measured, ratio
from benchmarks.prober import probing
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand, wait_until
from qworker.client.queue import Queue

__all__ = ["delayed"]

_CHUNK = 1000
_STREAM_S = 10
_INSTANT = 10_000


def delayed(plan: Plan) -> list[Figure]:
    """Measure moving, what other clients notice of it, lateness, and what the daemon takes while it waits."""
    contenders = {
        "overdue": lambda: _overdue(plan.messages),
        "stream": lambda: _stream(plan.messages),
        "instant": lambda: _instant(min(_INSTANT, plan.messages)),
    }
    samples = interleave(contenders, plan.rounds, plan.say)

    def of(contender: str, measure: str) -> list[float]:
        return samples.of(contender, measure)

    p99, unloaded = of("overdue", "p99_ms"), of("overdue", "unloaded_p99_ms")
    stream = f"{plan.messages // _STREAM_S:,}/s falling due"
    return [
        measured(
            "delayed",
            f"(a) {plan.messages:,} overdue: moved",
            of("overdue", "moved_s"),
            "messages/s",
            at_least(200_000),
        ),
        ratio("delayed", "(a) p99 of other clients to unloaded", p99, unloaded, at_most(3)),
        measured("delayed", "(a) p99 of other clients", p99, "ms"),
        measured(
            "delayed",
            f"(b) {stream}: p99 of lateness",
            of("stream", "p99_ms"),
            "ms",
            at_most(100),
        ),
        measured(
            "delayed",
            f"(b) {stream}: backlog of the last second to that of the first",
            of("stream", "growth"),
            "×",
            at_most(1.5),
        ),
        measured(
            "delayed",
            f"(c) {min(_INSTANT, plan.messages):,} at one instant: all moved after",
            of("instant", "moved_ms"),
            "ms",
            at_most(100),
        ),
        measured(
            "delayed",
            "(c) CPU of the daemon while it waits for them",
            of("instant", "waiting"),
            "% of a core",
            at_most(2),
        ),
    ]


def _send(queue: Queue, number: int, eta: datetime) -> None:
    queue.send_many(({"number": index, "pad": PAD} for index in range(number)), eta=eta)


def _now(stand: Stand) -> datetime:
    seconds, microseconds = stand.redis.time()
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _overdue(messages: int) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()

        def delayed_now() -> int:
            found: int = stand.redis.zcard(queue.keys.delayed)
            return found

        # Late enough for all of them to be sent, and over before the daemon starts.
        eta = _now(stand) + timedelta(seconds=2 + messages / 40_000)
        for first in range(0, messages, _CHUNK):
            _send(queue, min(_CHUNK, messages - first), eta)
        with probing(stand) as probes:
            before = time.monotonic()
            time.sleep(max(1.0, (eta - _now(stand)).total_seconds()))
            alone = time.monotonic()
            # Not `stand.qworker`: it waits for a daemon that has made its first pass.
            environ = {"QWORKER_URL": stand.url, "QWORKER_NAMESPACE": NAMESPACE}
            words = ("daemon", "--durability", "off", "--metrics-port", "0")
            with stand.start("qworker", *words, **environ):
                wait_until(lambda: delayed_now() < messages, step_s=0.001)
                begun, left = time.monotonic(), delayed_now()
                wait_until(lambda: not delayed_now(), step_s=0.005)
                ended = time.monotonic()
        if queue.inspect().ready != messages:
            raise RuntimeError(f"{queue.inspect()} of {messages} messages")
    return {
        "moved_s": left / (ended - begun),
        "p99_ms": probes.p99_ms(begun, ended),
        "unloaded_p99_ms": probes.p99_ms(before, alone),
    }


def _stream(messages: int) -> dict[str, float]:
    """Messages fall due in steps of a thousand; lateness is that of the oldest overdue one, at every reading."""
    with Stand() as stand:
        queue = stand.queue()
        steps = messages // _CHUNK
        begin = _now(stand) + timedelta(seconds=3 + messages / 40_000)
        for step in range(steps):
            _send(queue, _CHUNK, begin + timedelta(seconds=_STREAM_S * step / steps))
        with stand.qworker("daemon", "--durability", "off") as daemon:
            time.sleep(max(0.0, (begin - _now(stand)).total_seconds()))
            begun, looks = time.monotonic(), []
            while stand.redis.zcard(queue.keys.delayed):
                daemon.check()
                now_ms = _now(stand).timestamp() * 1000
                backlog = stand.redis.zcount(queue.keys.delayed, "-inf", now_ms)
                oldest = stand.redis.zrange(queue.keys.delayed, 0, 0, withscores=True)
                late_ms = max(0.0, now_ms - float(oldest[0][1])) if oldest else 0.0
                looks.append((time.monotonic() - begun, late_ms, backlog))
                time.sleep(0.003)
    first = [backlog for at, _, backlog in looks if at < 1] or [0]
    last = [backlog for at, _, backlog in looks if _STREAM_S - 1 <= at < _STREAM_S] or [0]
    return {
        "p99_ms": quantile([late for _, late, _ in looks], 0.99),
        # A backlog under one step is none.
        "growth": max(_CHUNK, sum(last) / len(last)) / max(_CHUNK, sum(first) / len(first)),
    }


def _instant(messages: int) -> dict[str, float]:
    with Stand() as stand, stand.qworker("daemon", "--durability", "off") as daemon:
        queue = stand.queue()
        eta = _now(stand) + timedelta(seconds=5)
        for first in range(0, messages, _CHUNK):
            _send(queue, min(_CHUNK, messages - first), eta)
        before, begun = daemon.cpu_s(), time.monotonic()
        time.sleep(max(1.0, (eta - _now(stand)).total_seconds() - 0.2))
        waiting = (daemon.cpu_s() - before) / (time.monotonic() - begun)
        wait_until(lambda: not stand.redis.zcard(queue.keys.delayed), step_s=0.001)
        moved_ms = (_now(stand) - eta).total_seconds() * 1000
    return {"moved_ms": moved_ms, "waiting": 100 * waiting}
