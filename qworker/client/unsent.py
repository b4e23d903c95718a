"""The calls of a group that wait in outboxes: their queues do not take them, or nothing has relayed them yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from qworker.client.per_shard import chained, everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.calls import NUMBERS_PER_MS
from qworker.engine.outbox import destinations
from qworker.engine.raw import raw
from qworker.wire.names import check_message_id

__all__ = ["UnsentCalls", "message_of", "unsent_calls"]

#: Entries of an outbox per call, and at most.
_PAGE: Final = 500
_MOST: Final = 100_000


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
        calls, since_ms, first = 0, 0, "-"
        for _ in range(_MOST // _PAGE):
            entries: list[Any] = yield raw(
                "XRANGE", queue.keys.outbox(name), first, "+", "COUNT", _PAGE, decode=list
            )
            ours = [entry for entry, fields in entries if message_of(fields).startswith(prefix)]
            if ours and not calls:
                since_ms = int(ours[0].partition(b"-")[0]) // NUMBERS_PER_MS
            calls += len(ours)
            if len(entries) < _PAGE:
                break
            first = f"({entries[-1][0].decode()}"
        if calls:
            found.append(UnsentCalls(name, calls, since_ms))
    return found


def message_of(fields: list[bytes]) -> str:
    """Return the id of the message, or of the group of calls, that an entry of an outbox is to store; '' of others."""
    entry = dict(zip(fields[::2], fields[1::2], strict=True))
    named = entry.get(b"head", b"").removeprefix(b"q1 ").strip() or entry.get(b"open", b"")
    return named.decode("utf-8", "replace")
