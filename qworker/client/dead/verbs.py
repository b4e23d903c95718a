"""List, count, redrive and drop dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from qworker.client.dead.filter import DeadFilter, DeadTally
from qworker.client.dead.pages import (
    READ_PAGE,
    Act,
    ChangeCounts,
    DeadLetterScan,
    change,
    change_these,
    drop,
    narrowed,
)
from qworker.client.dead.pages import redrive as redrive_page
from qworker.client.dead.throttle import Rate, Throttle, rate_per_s
from qworker.client.message import DeadLetter
from qworker.client.per_shard import chained, each_readable, of_one_shard
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.kinds import IntegerKind
from qworker.engine.raw import server_time
from qworker.errors import InvalidOptionError, QworkerError
from qworker.wire.ids import EntryId

__all__ = ["dead", "dead_of", "drop_dead", "find_dead", "redrive", "shard_of", "tally_dead"]

_COUNT: Final = IntegerKind("most dead letters", minimum=1)
_LIMIT: Final = IntegerKind("most dead letters")
_ALL: Final = DeadFilter()
#: Dead letters per call that are chosen by their ids: of unknown size, and to free 4 MiB keeps the server for 0.5 ms.
_CHOSEN: Final = 25


def dead(
    queue: QueueRef,
    /,
    count: int = 10,
    wanted: DeadFilter | None = None,
    *,
    after: str = "-",
    newest: bool = False,
    **given: object,
) -> Plan[list[DeadLetter]]:
    """List dead letters that fit, oldest first; `after`: the entry id to continue from.

    Filters as in `DeadFilter`, by value or by keyword: task, reason, error_class, error (a part of its text),
    older_than, newer_than, ids, fingerprint.
    """
    chosen, count = DeadFilter.of(wanted, given), _COUNT.check(count, "count")
    last = None if after == "-" else EntryId.parse(after)
    shards, chosen = yield from narrowed((yield from queue.every_shard()), chosen)

    def read(shard: QueueRef) -> Plan[list[DeadLetter]]:
        behind = last and _behind(last, shard.keys.shard, newest=newest)
        return dead_of(shard, count, chosen, after=behind, newest=newest)

    dead_letters = chained((yield from each_readable(shards, read)))
    if len(shards) > 1:
        dead_letters.sort(key=lambda dead_letter: dead_letter.entry, reverse=newest)
    return dead_letters[:count]


def find_dead(queue: QueueRef, message_id: str) -> Plan[DeadLetter | None]:
    """Find the dead letter of a message; None if there is none. O(n)."""
    if not message_id:
        return None  # Foreign dead letters have no message id.
    reading = DeadLetterScan(queue, _ALL, now_ms=0, size=READ_PAGE)
    while not reading.ended:
        for dead_letter in (yield from reading.page()):
            if dead_letter.message.id == message_id:
                return dead_letter
    return None


def tally_dead(
    queue: QueueRef, /, wanted: DeadFilter | None = None, **given: object
) -> Plan[DeadTally]:
    """Count dead letters that fit by reason, error class and task; filters as in `dead`. O(n)."""
    chosen = DeadFilter.of(wanted, given)
    shards, chosen = yield from narrowed((yield from queue.every_shard()), chosen)
    return DeadTally.sum((yield from each_readable(shards, lambda shard: _tally(shard, chosen))))


def _tally(shard: QueueRef, wanted: DeadFilter) -> Plan[DeadTally]:
    reading = yield from DeadLetterScan.begin(shard, wanted, size=READ_PAGE)
    tally = DeadTally()
    while not reading.ended:
        for dead_letter in (yield from reading.page()):
            tally.add(dead_letter)
    return tally


def redrive(
    queue: QueueRef,
    /,
    *entry_ids: str,
    wanted: DeadFilter | None = None,
    rate: Rate | None = None,
    limit: int | None = None,
    **given: object,
) -> Plan[list[str]]:
    """Put dead letters back to ready with fresh counts; returns the entry ids of those redriven.

    Choose them by entry id, or by filters as in `dead` (`everything=True` for all); later dead letters are
    left alone, and so are those whose unique key another message holds. `rate` is "100/s", "50/m" or a
    number per second; None: no limit. After an interruption call it again.
    """
    throttle = Throttle(None if rate is None else rate_per_s(rate, "rate"))
    changed = yield from _change(queue, redrive_page, entry_ids, wanted, given, throttle, limit)
    return [str(entry) for entry in changed.redriven]


def drop_dead(
    queue: QueueRef,
    /,
    *entry_ids: str,
    wanted: DeadFilter | None = None,
    limit: int | None = None,
    **given: object,
) -> Plan[int]:
    """Delete dead letters, chosen as in `redrive`; returns how many were deleted."""
    return (yield from _change(queue, drop, entry_ids, wanted, given, Throttle(None), limit)).done


def dead_of(
    queue: QueueRef,
    count: int,
    wanted: DeadFilter = _ALL,
    *,
    after: EntryId | None = None,
    newest: bool = False,
) -> Plan[list[DeadLetter]]:
    """List dead letters of one shard that fit."""
    by_age = wanted.older_than_ms is not None or wanted.newer_than_ms is not None
    now_ms: int = (yield server_time()) if by_age else 0
    size = min(count, READ_PAGE) if wanted.is_empty else READ_PAGE
    reading = DeadLetterScan(queue, wanted, now_ms=now_ms, after=after, newest=newest, size=size)
    dead_letters: list[DeadLetter] = []
    while not reading.ended and len(dead_letters) < count:
        dead_letters += yield from reading.page()
    return dead_letters[:count]


def _behind(last: EntryId, shard: int, *, newest: bool) -> EntryId | None:
    """Return the id that a shard continues behind, if `last` is the last one listed of all shards; None: its start."""
    if newest and shard < last.shard:
        return last.after()
    if not newest and shard > last.shard:
        return last.before()
    return last


def shard_of(queue: QueueRef, entry: EntryId) -> QueueRef:
    """Return the shard of an entry. Raises `InvalidOptionError` if `queue` is another shard."""
    if queue.single and entry.shard not in (0, queue.keys.shard):
        raise InvalidOptionError(
            "entry id",
            f"{str(entry)!r} is not in shard {queue.keys.queue!r}",
            f"use queue {queue.keys.name!r}",
        )
    return queue.shard(entry.shard)


def _change(
    queue: QueueRef,
    act: Act,
    entry_ids: Sequence[str],
    wanted: DeadFilter | None,
    given: Mapping[str, object],
    throttle: Throttle,
    limit: int | None,
) -> Plan[ChangeCounts]:
    """Change these entries, or else those that fit a filter. Raises `InvalidOptionError` if both are given."""
    named = dict(given)
    everything = named.pop("everything", False) is True
    filtered = wanted is not None or everything or bool(named)
    if filtered and entry_ids:
        raise InvalidOptionError(
            "entry ids", "are given together with a filter", "give one of the two"
        )
    if limit is not None:
        limit = _LIMIT.check(limit, "limit")
    changed = ChangeCounts()
    if not filtered:
        chosen = [EntryId.parse(entry_id) for entry_id in entry_ids]
        by_shard: dict[QueueRef, list[EntryId]] = {}
        for entry in chosen[:limit]:
            by_shard.setdefault(shard_of(queue, entry), []).append(entry)
        for shard, some in by_shard.items():
            for first in range(0, len(some), _CHOSEN):
                part = some[first : first + _CHOSEN]
                changed.add((yield from change_these(shard.keys, act, part, throttle)))
        return changed
    which = DeadFilter.of(wanted, named)
    if which.is_empty and not everything:
        raise InvalidOptionError("filter", "fits every dead letter", "pass everything=True for all")
    failed = None
    shards, which = yield from narrowed((yield from queue.every_shard()), which)
    for shard in shards:
        left = None if limit is None else limit - changed.total
        try:
            reading = yield from DeadLetterScan.begin(shard, which)
            changed.add(
                (yield from change(shard.keys, reading, act, throttle=throttle, limit=left))
            )
        except QworkerError as error:
            if not of_one_shard(error):
                raise
            failed = failed or error
    if failed is not None:
        raise failed
    return changed
