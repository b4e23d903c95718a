"""groups: messages without a group, of a thousand groups, and of a group each; received by a client and by a worker."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.drain import Variant, of_ours
from benchmarks.figures import Figure, at_least, at_most, measured, ratio
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
_WORKER: Final = "a worker, "


def groups(plan: Plan) -> list[Figure]:
    """Measure a client that receives a hundred at a time, a worker, what the server spends, and what a group takes."""
    number = plan.messages
    spread = {_PLAIN: 0, _FEW: 1000, _EACH: number}
    contenders = {name: lambda of=of: _drained(number, of) for name, of in spread.items()}
    for name, of in spread.items():
        contenders[_WORKER + name] = lambda of=of: of_ours(number, Variant(), of)
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured("groups", name, samples.of(name, "rate"), "messages/s") for name in contenders
    ]
    for kind, goal in (("", None), (_WORKER, at_least(0.5))):
        for name in (_FEW, _EACH):
            ours, plain = samples.of(kind + name, "rate"), samples.of(kind + _PLAIN, "rate")
            figures.append(ratio("groups", f"{kind}{name} to {_PLAIN}", ours, plain, goal))
    figures += [
        measured("groups", f"server, {name}", samples.of(name, "cpu_us"), "µs/message")
        for name in spread
    ]
    each, few = samples.of(_EACH, "bytes"), samples.of(_FEW, "bytes")
    more = [(own - shared) / max(1, number - 1000) for own, shared in zip(each, few, strict=True)]
    bound = at_most(200) if number > 1000 else None
    return [*figures, measured("groups", "memory of a group that waits", more, "bytes", bound)]


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
        spent = stand.spent()
        begun, seen, number = time.monotonic(), 0, 0
        while seen < messages:
            number += 1
            lease = f"b-{number}"
            batch = queue.client.execute(
                settle_receive(queue.keys, lease, _BATCH, outcomes=outcomes, visibility_ms=60_000)
            )
            seen += len(batch.items)
            outcomes = [Outcomes(lease, ack_all=True)]
        rate = messages / (time.monotonic() - begun)
        cost = (stand.spent() - spent).per(messages)
        return {"rate": rate, "bytes": float(held), **cost}
