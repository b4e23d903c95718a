"""The verdict on each message: whether its lifecycle has ended as it should, beside what Redis holds now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.holes import IN_RECORD, Hole, Shard
from qworker.pipeline.jobs.lifecycle import DELIVERED, KEYS, LIVES, POSITION, lifecycles, of_life
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.jobs.queries import at
from qworker.pipeline.jobs.record import Record, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Snapshot", "Window", "judged", "judged_apart", "started_late"]

_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


#: The columns of a judged lifecycle beside its findings: the rest is not even computed.
_JUDGED: Final = (
    *(*LIVES, "again", "task", "sent_ts", "sent_seen", "last_event", "end_event"),
    *("last_ts", "acks", "redrives", "attempts", "state", "stored", "first_ack"),
)

# Verdicts on a lifecycle, in SQL.
#: A message that died is redriven before it ends again; that may be missing.
_TWICE: Final = "(acks > 1 or ends > 1 or (ends + deaths > redrives + 1 and not redrive_in_hole))"
#: In a hole: by position; and by time, for epochs that a clock set back has put in another order.
#: Its first events may be in a hole as well: it was sent before that.
_INSIDE: Final = "(array_max(behind) >= first or least(sent_ts, first_ts) < until)"
_BETWEEN: Final = "exists(behind, place -> place >= first_over and place < last_over)"
_IN_UNSURE: Final = "array_max(unsure) >= if(not sent_seen or unheard, first, first_delivery)"
#: It went with its journal, whichever came first by number and by time.
_WITH_IT: Final = "(renewed and coalesce(first.epoch <> present or last.epoch <> present, true))"
#: The end of a message may be in every hole after its first event: events after that hole may be those of a late
#: delivery. Or it may be in an event `unsure` after its first delivery, which is known only if deliveries were
#: journalled.
_IN_HOLE: Final = " or ".join(
    f"coalesce({each}, false)" for each in (_INSIDE, _IN_UNSURE, _WITH_IT)
)
_STARTED_LATE: Final = f"""
    event in {DELIVERED} and {POSITION} > first_ack
    and (event = 'delivered' or greatest(delivered_ts, started_ts) > acked_ts)
"""


@dataclass(frozen=True, slots=True)
class Window:
    """Messages sent from `since` (inclusive) until `until` (exclusive); None: no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def cut(self, rows: DataFrame, column: str = "sent_ts") -> DataFrame:
        """Leave out rows with a time that is not in the window."""
        if self.since is not None:
            rows = rows.where(f"{column} >= {at(self.since)}")
        if self.until is not None:
            rows = rows.where(f"{column} < {at(self.until)}")
        return rows

    def reaches(self, hole: Hole) -> bool:
        """Whether a hole may hide events of the window, among them one at the beginning of the data."""
        return self.since is None or hole.until is None or hole.until > self.since


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The messages in Redis, read from the time `taken` on. Columns: queue, shard, message_id, state, sent_ts."""

    taken: datetime
    messages: DataFrame


def judged(
    record: Record,
    window: Window,
    snapshot: Snapshot | None,
    suspects: DataFrame | None,
    seen: Seen | None,
    *,
    apart: bool = False,
) -> DataFrame:
    """Lifecycles of the window, with the state in Redis, and a BOOLEAN for each finding.

    Those of messages that were sent `again` are of several lives: take the rows of `judged_apart` in their place.
    """
    from pyspark.sql import functions as F

    keys = list(KEYS)
    rows = lifecycles(window.cut(record.events), apart=apart)
    stored, gone = "cast(null as string)", "false"
    if snapshot is not None:
        # Of an id that was taken again only the last life is stored; plain messages have no time.
        held = snapshot.messages.groupBy(*keys).agg(
            F.expr("max(state) as held"), F.expr("max(sent_ts) as held_ts")
        )
        rows = rows.join(held, keys, "left")
        stored = f"if(held_ts is null or {of_life('held_ts')}, held, null)"
        gone = f"state = 'open' and stored is null and last_ts < {at(snapshot.taken)}"
    if suspects is not None:
        rows = rows.join(suspects.selectExpr(*keys, "true as suspect"), keys, "left")
        gone += " and coalesce(suspect, false)"
    in_hole = redrive_in_hole = "false"
    shards = _shards(rows.sparkSession, record, () if seen is None else seen.holes)
    if shards is not None:
        rows = rows.join(F.broadcast(shards), ["queue", "shard"], "left")
        in_hole, redrive_in_hole = _IN_HOLE, f"coalesce({_BETWEEN}, false)"
    rows = rows.selectExpr(
        "*",
        f"{stored} as stored",
        f"{in_hole} as in_hole",
        f"{redrive_in_hole} as redrive_in_hole",
    )
    return rows.selectExpr(
        *_JUDGED,
        f"{gone} and not in_hole as lost",
        f"{gone} and in_hole as unsure",
        f"{_TWICE} as acked_twice",
        "coalesce(last_delivery > first_ack, false) as delivered_late",
    )


def judged_apart(
    rows: DataFrame,
    record: Record,
    window: Window,
    snapshot: Snapshot | None,
    suspects: DataFrame | None,
    seen: Seen | None,
) -> DataFrame:
    """The lives of messages that were sent `again` according to `judged` rows: calls of a group started again."""
    ids = rows.where("again").select(*KEYS).distinct()
    events = record.events.join(ids, list(KEYS), "left_semi")
    return judged(replace(record, events=events), window, snapshot, suspects, seen, apart=True)


def _shards(spark: SparkSession, record: Record, before: Iterable[Hole]) -> DataFrame | None:
    """What the record lacks of each shard; None: nothing.

    queue, shard · behind: the positions of its holes · until: the end of the last one · unsure: positions of events
    `unsure` · unheard BOOLEAN: sends were not journalled · renewed BOOLEAN: it had other epochs · present: its epoch
    now.
    """
    holes = [hole for hole in (*record.holes, *before) if hole.why not in IN_RECORD]
    shards = {*record.present, *((hole.queue, hole.shard) for hole in (*holes, *record.unsure))}
    if not shards:
        return None
    import pyarrow as pa

    def of(shard: Shard, some: Iterable[Hole]) -> list[Hole]:
        return [hole for hole in some if (hole.queue, hole.shard) == shard]

    def places(some: Iterable[Hole]) -> list[dict[str, int]]:
        return [{"epoch": hole.epoch, "number": hole.after} for hole in some]

    position = pa.list_(pa.struct([("epoch", pa.int64()), ("number", pa.int64())]))
    schema = pa.schema(
        [
            *(("queue", pa.string()), ("shard", pa.int32())),
            *(("behind", position), ("until", pa.timestamp("us", tz="UTC")), ("unsure", position)),
            *(("unheard", pa.bool_()), ("renewed", pa.bool_()), ("present", pa.int64())),
        ]
    )
    rows = [
        (
            *shard,
            places(behind := of(shard, holes)),
            max((hole.until or _NEVER for hole in behind), default=None),
            places(of(shard, record.unsure)),
            bool(of(shard, record.unheard)),
            shard in record.present,
            record.present.get(shard),
        )
        for shard in shards
    ]
    return local_frame(spark, rows, schema)


def started_late(events: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages with a delivery after their first ack that was also received or started after it.

    Only messages whose last delivery comes after their first ack are read: on a clean run there are none.
    """
    from pyspark.sql import functions as F

    suspects = rows.where("delivered_late").select(*LIVES, "first_ack")
    acked_ts = f"min(if(event = 'acked', ts, null)) over (partition by {', '.join(LIVES)})"
    return (
        events.join(F.broadcast(suspects), list(KEYS))
        .where(of_life())
        .selectExpr("*", f"{acked_ts} as acked_ts")
        .where(_STARTED_LATE)
        .select(*LIVES)
        .distinct()
    )
