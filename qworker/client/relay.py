"""Relay outboxes: what acks bring about in other queues is stored there, in order and once.

Any number of processes may relay the same outbox. Each reads it from its head, and forgets entries only after the
destination has said that it holds them; the destination leaves out those that it has stored before.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from itertools import groupby
from typing import Any, Final

import msgspec

from qworker.client.per_shard import chained, everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.command import Brief, Command
from qworker.engine.index import announce
from qworker.engine.outbox import Entry, Notice, Page, accept, destinations, forward, tell
from qworker.errors import QworkerError
from qworker.wire.keys import QueueKeys

__all__ = ["Outbox", "outboxes", "outboxes_of", "relay"]

#: Seconds between two writes of a destination into the index of queues, as of any sender.
_ANNOUNCE_S: Final = 60.0


class Outbox(msgspec.Struct, frozen=True):
    """Messages that wait to be stored in another queue: their number, and how long the first one has waited."""

    destination: str
    entries: int
    age_s: float


def outboxes_of(keys: QueueKeys) -> Generator[Command[Any], Any, list[Outbox]]:
    """Measure the outboxes of a queue (or shard) that are not empty."""
    found = []
    for name in (yield destinations(keys)):
        page: Page = yield forward(keys, name, count=1)
        if page.entries:
            age_ms = max(0, page.now_ms - page.entries[0].written_ms)
            found.append(Outbox(name, page.left, age_ms / 1000))
    return found


@everywhere(chained)
def outboxes(queue: QueueRef) -> Plan[list[Outbox]]:
    """Measure what acks of a queue have brought about in other queues and that is not stored there yet."""
    return (yield from outboxes_of(queue.keys))


def relay(
    namespace: str,
    keys: QueueKeys,
    *,
    pages: int | None = None,
    announced: dict[str, float] | None = None,
) -> Plan[dict[str, QworkerError]]:
    """Relay all outboxes of a queue (or shard), of each up to `pages` of a hundred entries.

    `announced`: when this relayer wrote each destination into the index of queues; it is kept up.

    Returns the error of each destination that does not take its entries: they wait. Raises that of the queue itself.
    """
    failed: dict[str, QworkerError] = {}
    announced = {} if announced is None else announced
    for name in (yield destinations(keys)):
        # The first shard exists in any division of the queue, so a repetition finds what was stored before.
        target = QueueKeys(namespace, name)
        page: Page = yield forward(keys, name)
        done = 0
        while page.entries and done != pages:
            stored, problem = yield from _store(target, page)
            done += 1
            page = yield forward(keys, name, page.lane, stored)
            if problem is not None:
                failed[name] = problem
                break
            if time.monotonic() - announced.get(name, float("-inf")) >= _ANNOUNCE_S:
                announced[name] = time.monotonic()
                yield Brief(announce(namespace, [name]), index_write=True)
    return failed


def _store(target: QueueKeys, page: Page) -> Plan[tuple[int, QworkerError | None]]:
    """Store entries; returns the number of the last one that is stored, and why the others are not."""
    stored = 0
    for priority, run in groupby(page.entries, key=_priority):
        left: list[Any] = [*run]
        while left:
            try:
                if priority is None:
                    stored = yield tell(target, page.lane, left)
                else:
                    stored = yield accept(target, page.lane, left)
            except QworkerError as error:
                return stored, error
            left = [entry for entry in left if entry.number > stored]
    return stored, None


def _priority(entry: Entry | Notice) -> int | None:
    """The common part of entries that one call stores; None for results."""
    return entry.priority if isinstance(entry, Entry) else None
