"""groups: receive and ack of messages without a group, of a thousand in one group, and of a group each."""

from __future__ import annotations

import time

from benchmarks.figures import Figure, at_least, measured, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand
from qworker.engine.receive import settle_receive
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail

__all__ = ["groups"]

_BATCH = 100
_AT_ONCE = 1000
_PLAIN, _FEW, _EACH = "no group", "1,000 groups", "a group each"


def groups(plan: Plan) -> list[Figure]:
    """Measure a client that receives a hundred at a time and acks them with the next, and what a group takes."""
    number = plan.messages
    contenders = {
        _PLAIN: lambda: _drained(number, 0),
        _FEW: lambda: _drained(number, 1000),
        _EACH: lambda: _drained(number, number),
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured("groups", name, samples.of(name, "rate"), "messages/s") for name in contenders
    ]
    for name in (_FEW, _EACH):
        ours, plain = samples.of(name, "rate"), samples.of(_PLAIN, "rate")
        figures.append(ratio("groups", f"{name} to {_PLAIN}", ours, plain, at_least(0.5)))
    more = [
        (own - plain) / number
        for own, plain in zip(samples.of(_EACH, "bytes"), samples.of(_PLAIN, "bytes"), strict=True)
    ]
    return [*figures, measured("groups", "memory of a group with one message", more, "bytes")]


def _drained(messages: int, groups_of: int) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()
        before = stand.redis.info("memory")["used_memory"]
        body = PAD.encode()
        for first in range(0, messages, _AT_ONCE):
            some = []
            for each in range(first, min(first + _AT_ONCE, messages)):
                group = f"g{each % groups_of}" if groups_of else ""
                flags = {"g": group} if group else None
                some.append(NewMessage(f"m{each:019}", tail(body, flags), group=group))
            queue.client.execute(send(queue.keys, some, lane="", sequence=0))
        held = stand.redis.info("memory")["used_memory"] - before
        outcomes: list[Outcomes] = []
        begun, seen, number = time.monotonic(), 0, 0
        while seen < messages:
            number += 1
            lease = f"b-{number}"
            batch = queue.client.execute(
                settle_receive(queue.keys, lease, _BATCH, outcomes=outcomes, visibility_ms=60_000)
            )
            seen += len(batch.items)
            outcomes = [Outcomes(lease, ack_all=True)]
        return {"rate": messages / (time.monotonic() - begun), "bytes": float(held)}
