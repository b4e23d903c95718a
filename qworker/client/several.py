"""Receiving from several queues, left to right, and reaping on the way where that is asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qworker.client.commands.command import Command
from qworker.client.commands.receiving import Batch, settle_receive
from qworker.client.message import Message
from qworker.client.reaping import reap_queue

if TYPE_CHECKING:
    from qworker.client.operations import Operations, Plan

__all__ = ["receive_several"]

_BLOCK_S: Final = 2.0
_SHORTEST_S: Final = 0.01


def receive_several(
    queues: Sequence[Operations],
    count: int,
    *,
    visibility_ms: int | None,
    wait_s: float,
    pop: bool,
    reap: bool,
) -> Plan[list[Message]]:
    """Receive up to `count` messages, from the first queue as many as it has, then from the next, and so on.

    Waits for the first message up to `wait_s` at the doorbells of all. Each queue that gives something makes a lease.
    """
    deadline = time.monotonic() + wait_s
    rung = b""
    while True:
        batches: list[tuple[Operations, Batch]] = []
        left, waits_ms = count, []
        for queue in queues:
            if not left:
                if queue.keys.wake.encode() == rung:
                    # Its token was taken and nothing of it: somebody else is to come.
                    yield Command(None, (), ("RPUSH", queue.keys.wake, "1"), int)
                continue
            if reap:
                waits_ms.append((yield from reap_queue(queue.keys)))
            lease_id = queue.ids.lease_id(visibility_ms)
            batch: Batch = yield settle_receive(
                queue.keys, lease_id, left, visibility_ms=visibility_ms
            )
            batches.append((queue, batch))
            left -= len(batch.items)
            waits_ms.append(batch.hint_ms if batch.hint_ms >= 0 else None)
        messages = []
        # Acked only now: a queue that fails must not cost what another one gave.
        for queue, batch in batches:
            messages += yield from queue.delivered(batch, pop=pop)
        left_s = deadline - time.monotonic()
        if messages or left_s <= 0:
            return messages
        known = [each for each in waits_ms if each is not None]
        if 0 in known:
            rung = b""
            continue
        block_s = min(_BLOCK_S, left_s, min(known, default=1e9) / 1000)
        bells = (queue.keys.wake for queue in queues)
        words = ("BLPOP", *bells, f"{max(_SHORTEST_S, block_s):.3f}")
        rung = yield Command(None, (), words, lambda reply: reply[0] if reply else b"")
