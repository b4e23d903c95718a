"""expire: a thousand leases of a hundred messages run out at one instant."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, measured
from benchmarks.prober import probing
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = ["expire"]

_LEASE = 100
#: More than a tick of the daemon, so that it knows of the deadlines before they come.
_AHEAD_S = 2.5


def expire(plan: Plan) -> list[Figure]:
    """Measure how fast the daemon gives the messages back, and what other clients notice of it."""
    samples = interleave({"qworker": lambda: _ours(plan.messages)}, plan.rounds, plan.say)
    moved, p99 = samples.of("qworker", "moved_s"), samples.of("qworker", "p99_ms")
    unloaded = samples.of("qworker", "unloaded_p99_ms")
    return [
        measured("expire", "messages given back", moved, "messages/s", at_least(200_000)),
        measured("expire", "p99 of other clients meanwhile", p99, "ms", at_most(5)),
        measured("expire", "p99 of other clients before", unloaded, "ms"),
    ]


def _ours(messages: int) -> dict[str, float]:
    with Stand() as stand, stand.qworker("daemon"):
        queue = stand.queue()
        queue.send_many({"number": number, "pad": PAD} for number in range(messages))
        while queue.receive(_LEASE, visibility="1h"):
            pass
        leases: Any = stand.redis.zrange(queue.keys.unacked, 0, -1)
        # The prober's start may take longer than the leases have left.
        with probing(stand) as probes:
            before = time.monotonic()
            seconds, microseconds = stand.redis.time()
            deadline_ms = seconds * 1000 + microseconds // 1000 + round(_AHEAD_S * 1000)
            due = time.monotonic() + _AHEAD_S
            stand.redis.zadd(queue.keys.unacked, dict.fromkeys(leases, deadline_ms), xx=True)
            time.sleep(max(0.0, due - time.monotonic()))
            wait_until(lambda: not stand.redis.zcard(queue.keys.unacked), step_s=0.002)
            ended = time.monotonic()
        seen = queue.inspect()
        if seen.ready + seen.suspect + seen.delayed != messages:
            raise RuntimeError(f"{seen} of {messages} messages")
    return {
        "moved_s": messages / (ended - due),
        "p99_ms": probes.p99_ms(due, ended),
        "unloaded_p99_ms": probes.p99_ms(before, due - 0.1),
    }
