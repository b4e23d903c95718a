"""Relay outboxes: store what acks have sent to other queues there, in order and once.

Any number of processes may relay the same outbox. Each reads it from its head, and forgets entries only after the
destination has said that it holds them; the destination leaves out those that it has stored before.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from qworker.client.per_shard import chained, everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.calls import End, GroupPart, RelayProgress, begin_relayed, count_ends
from qworker.engine.command import Brief, Command
from qworker.engine.index import announce
from qworker.engine.outbox import (
    PAGE,
    AnyEntry,
    Notice,
    OutboxMessage,
    OutboxPage,
    accept,
    destinations,
    forward,
    tell,
)
from qworker.errors import QworkerError
from qworker.wire.keys import QueueKeys

__all__ = ["Outbox", "outboxes", "outboxes_of", "relay"]

#: Seconds between two writes of a destination into the index of queues, as of any sender.
_ANNOUNCE_S: Final = 60.0
#: Groups in groups, see `qworker.app.composition`.
_DEPTH: Final = 5


class Outbox(msgspec.Struct, frozen=True):
    """Messages that wait to be stored in another queue: their number, and how long the first one has waited."""

    destination: str
    entries: int
    age_s: float


def outboxes_of(keys: QueueKeys) -> Generator[Command[Any], Any, list[Outbox]]:
    """Measure the outboxes of a queue (or shard) that are not empty."""
    found = []
    for name in (yield destinations(keys)):
        page: OutboxPage = yield forward(keys, name, count=1)
        if page.entries:
            age_ms = max(0, page.now_ms - page.entries[0].written_ms)
            found.append(Outbox(name, page.left, age_ms / 1000))
    return found


@everywhere(chained)
def outboxes(queue: QueueRef) -> Plan[list[Outbox]]:
    """Measure the messages that acks of a queue have sent to other queues and that are not stored there yet."""
    return (yield from outboxes_of(queue.keys))


def relay(
    namespace: str,
    keys: QueueKeys,
    *,
    pages: int | None = None,
    entries: int = PAGE,
    announced: dict[str, float] | None = None,
    depth: int = _DEPTH,
    apart: frozenset[str] = frozenset(),
) -> Plan[dict[str, QworkerError]]:
    """Relay all outboxes of a queue (or shard), of each up to `pages` of `entries` (1-1,000).

    `announced`: when this relayer wrote each destination into the index of queues; it is kept up. `depth`: how far to
    follow groups of calls, which have more to send where they begin and end, but for those of the queues `apart`.

    Returns the error of each destination that does not take its entries: they wait. Raises that of the queue itself.
    """
    failed: dict[str, QworkerError] = {}
    followed: dict[str, QueueKeys] = {}
    announced = {} if announced is None else announced
    for name in (yield destinations(keys)):
        # The first shard exists in any division of the queue, so a repetition finds what was stored before.
        target = QueueKeys(namespace, name)
        page: OutboxPage = yield forward(keys, name, count=entries)
        done = 0
        while page.entries and done != pages:
            stored = yield from _store(target, page)
            done += 1
            if stored.follows and name not in apart:
                followed[name] = target
            page = yield forward(keys, name, page.lane, stored.number, count=entries)
            if stored.problem is not None:
                failed[name] = stored.problem
                break
            if target.shard:
                continue  # of a run; it is known
            if time.monotonic() - announced.get(name, float("-inf")) >= _ANNOUNCE_S:
                announced[name] = time.monotonic()
                yield Brief(announce(namespace, [name]), index_write=True)
    for target in followed.values() if depth else ():
        failed |= yield from relay(
            namespace,
            target,
            pages=pages,
            entries=entries,
            announced=announced,
            depth=depth - 1,
            apart=apart,
        )
    return failed


class _Stored:
    """What a destination has of a page: the number of the last entry. `follows`: its own outboxes have more."""

    number = 0
    follows = False
    problem: QworkerError | None = None


def _store(target: QueueKeys, page: OutboxPage) -> Plan[_Stored]:
    """Store entries, until one is refused."""
    stored = _Stored()
    # The time to live of a message goes on while its queue does not take it.
    entries = (
        entry.at(page.now_ms) if isinstance(entry, OutboxMessage) else entry
        for entry in page.entries
    )
    for _, run in groupby(entries, key=_together):
        left: list[Any] = [*run]
        while left:
            try:
                done: int | RelayProgress = yield _command(target, page.lane, left)
            except QworkerError as error:
                stored.problem = error
                return stored
            stored.number = done.number if isinstance(done, RelayProgress) else done
            stored.follows |= isinstance(done, RelayProgress) and done.follows
            left = [entry for entry in left if entry.number > stored.number]
    return stored


def _together(entry: AnyEntry) -> tuple[type, int]:
    """What entries have in common that one call stores: messages of one priority; groups begin one by one."""
    if isinstance(entry, GroupPart):
        return GroupPart, entry.number
    return type(entry), entry.priority if isinstance(entry, OutboxMessage) else 0


def _command(target: QueueKeys, lane: str, entries: Sequence[Any]) -> Command[Any]:
    first: AnyEntry = entries[0]
    if isinstance(first, OutboxMessage):
        return accept(target, lane, entries)
    if isinstance(first, Notice):
        return tell(target, lane, entries)
    if isinstance(first, End):
        return count_ends(target, lane, entries)
    return begin_relayed(target, lane, first)
