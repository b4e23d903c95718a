"""The newest dead letters that fit, from a bounded number that is read: the dozen of today among a million."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from qworker.client.dead.filter import DeadFilter, DeadTally
from qworker.client.dead.pages import READ_PAGE, DeadLetterScan, narrowed
from qworker.client.message import DeadLetter
from qworker.client.per_shard import each_readable
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import server_time
from qworker.wire.ids import EntryId

__all__ = ["Newest", "newest"]

#: Entries are in the order of death, but for clocks that are set back by a failover.
_SLACK_MS: Final = 60_000


@dataclass(slots=True)
class Newest:
    """Dead letters found at `now_ms`, the newest first. `read`: how many were read.

    `last`: continue behind this entry; None if all have been read.
    """

    now_ms: int
    found: list[DeadLetter] = field(default_factory=list)
    read: int = 0
    last: EntryId | None = None


def newest(
    queue: QueueRef, wanted: DeadFilter, *, most_read: int, after: EntryId | None = None
) -> Plan[Newest]:
    """Find dead letters that fit among the newest `most_read`, or those behind `after`; of each shard its part.

    Ends early where all others have died before `newer_than`.
    """
    shards, wanted = yield from narrowed((yield from queue.every_shard()), wanted)
    result = Newest((yield server_time()))

    def read(shard: QueueRef) -> Plan[None]:
        behind = after and _behind(after, shard.keys.shard)
        reading = DeadLetterScan(
            shard, wanted, now_ms=result.now_ms, after=behind, newest=True, size=READ_PAGE
        )
        seen = DeadTally()
        while not reading.ended and seen.total * len(shards) < most_read:
            result.found += yield from reading.page(seen)
            if _all_older(reading, wanted, result.now_ms):
                break
        else:
            if not reading.ended and reading.last is not None:
                result.last = max(filter(None, (result.last, reading.last)))
        result.read += seen.total

    yield from each_readable(shards, read)
    result.found.sort(key=lambda dead_letter: dead_letter.entry, reverse=True)
    return result


def _behind(last: EntryId, shard: int) -> EntryId | None:
    """Return where a shard continues, after a page of all shards that ended with `last`."""
    if shard < last.shard:
        return last.after()
    return EntryId(last.ms, last.number, shard)


def _all_older(reading: DeadLetterScan, wanted: DeadFilter, now_ms: int) -> bool:
    if wanted.newer_than_ms is None or reading.last is None:
        return False
    return reading.last.ms < now_ms - wanted.newer_than_ms - _SLACK_MS
