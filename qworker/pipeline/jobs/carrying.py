"""The state that a run needs of the one before: messages that may still change, and holes that may hide their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.compositions import WATCHED, KeptGroup, events_of
from qworker.pipeline.jobs.holes import IN_RECORD, Hole, Shard, utc
from qworker.pipeline.jobs.lifecycle import KEYS, LIVES, of_life
from qworker.pipeline.jobs.local import local_frame, of_few, together
from qworker.pipeline.jobs.queries import at
from qworker.pipeline.source.schemas import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.jobs.record import Record

__all__ = ["last_holes", "needed_events", "recent", "unfinished"]

#: Lifecycles that an audit has named.
_REPORTED: Final = "lost or unsure or acked_twice or delivered_late"
#: Maximum number of holes that are kept of a shard: a message that is carried rarely has more behind it.
_HOLES: Final = 100


def needed_events(record: Record, kept: DataFrame, groups: Sequence[KeptGroup] = ()) -> DataFrame:
    """The events that the archive has of the lives `kept`, and the modes of journals that do not have everything.

    Also those of `groups` of calls, and of the calls of those that wait. Events of the live journal come again, with
    the archive.
    """
    from pyspark.sql import functions as F

    events = record.events.where("event not in ('gap', 'mode') and not live").drop("live")
    columns = events.columns
    lives = kept.selectExpr(*(f"{name} as of_{name}" for name in LIVES))
    own = " and ".join([*(f"{name} = of_{name}" for name in KEYS), of_life(life="of_life")])
    schema = arrow_of("journal")
    # With a zone: a time of this process is ambiguous in an hour of autumn.
    modes = [
        tuple({**row.asDict(), "ts": utc(row.ts)}.get(name) for name in schema.names)
        for row in record.modes
        if not row.live
    ]
    needed = events.join(lives, F.expr(own), "left_semi")
    if groups:
        # An event may be needed for both.
        needed = together(needed, events_of(events, groups)).dropDuplicates(
            ["queue", "shard", "epoch", "number", "event", "message_id", "ts"]
        )
    needed = together(needed, local_frame(events.sparkSession, modes, schema).select(*columns))
    return needed if of_few(needed) else needed.coalesce(8)


def last_holes(holes: Iterable[Hole], at: datetime) -> tuple[Hole, ...]:
    """The last holes of each shard, by their positions; what has no end yet ends at `at`.

    All of them, for a redrive of a message may be in one that is not the last.
    """
    found: dict[Shard, dict[tuple[int, int], Hole]] = {}
    for hole in holes:
        if hole.why in IN_RECORD:
            continue
        shard, until = (hole.queue, hole.shard), hole.until or at
        of_shard = found.setdefault(shard, {})
        known = of_shard.get((hole.epoch, hole.after))
        if known is not None and known.until is not None:
            until = max(known.until, until)
        place = (hole.epoch, hole.after)
        of_shard[place] = Hole(*shard, *place, None, None, until, hole.why)
    return tuple(hole for of_shard in found.values() for hole in _newest(of_shard.values()))


def _newest(holes: Iterable[Hole]) -> list[Hole]:
    """Choose at most `_HOLES` holes; the last one has the latest time of all."""
    chosen = sorted(holes, key=lambda hole: (hole.epoch, hole.after))
    latest = max(hole.until for hole in chosen if hole.until is not None)
    return [*chosen[-_HOLES:-1], replace(chosen[-1], until=latest)]


def recent(newest: datetime | None) -> str:
    """Whether a message had an event in the last hour before `newest`, the time of the last one of all, as SQL."""
    return "false" if newest is None else f"last_ts > {at(newest - WATCHED)}"


def unfinished(rows: DataFrame, newest: datetime | None) -> DataFrame:
    """The lifecycles that an audit has judged and the next one needs: queue, shard, message_id, life."""
    needed = f"(state = 'open' or {recent(newest)}) and not ({_REPORTED})"
    return rows.where(needed).select(*LIVES)
