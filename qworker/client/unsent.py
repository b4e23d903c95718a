"""The calls of a group that wait in outboxes: their queues do not take them, or nothing has relayed them yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qworker.client.per_shard import chained, everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.outbox import UnsentPage, destinations, unsent
from qworker.wire.names import check_message_id

__all__ = ["UnsentCalls", "unsent_calls"]

#: Pages of an outbox that are read at most.
_MAX_PAGES: Final = 200


@dataclass(frozen=True, slots=True)
class UnsentCalls:
    """How many calls of a group wait to be stored in the queue `destination`, and since when, by the server's clock."""

    destination: str
    calls: int
    since_ms: int


@everywhere(chained, reads=True)
def unsent_calls(queue: QueueRef, group_id: str) -> Plan[list[UnsentCalls]]:
    """Count the calls of a group that wait in the outboxes of its callback's queue, which it puts them into.

    Reads up to 100,000 entries of each outbox. Calls of groups that are calls of it are counted where these begin.
    """
    prefix = f"{check_message_id(group_id)}."
    found = []
    for name in (yield destinations(queue.keys)):
        calls, since_ms, start = 0, 0, "-"
        for _ in range(_MAX_PAGES):
            page: UnsentPage = yield unsent(queue.keys, name, start)
            ours = [entry for entry in page.entries if entry.message_id.startswith(prefix)]
            if ours and not calls:
                since_ms = ours[0].written_ms
            calls += len(ours)
            start = page.rest
            if not start:
                break
        if calls:
            found.append(UnsentCalls(name, calls, since_ms))
    return found
