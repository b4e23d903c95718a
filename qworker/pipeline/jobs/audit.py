"""Audit: did every accepted message end exactly once? Over an archive, the live journal, or both.

A message belongs to the window in which it was sent: every event carries sent_ts, and later events are read to the end
of the data, so the window's end cuts no lifecycle. Messages sent before the window are left out. Without a window, a
message is judged by the events that are there.

    lost               no end, no event since the snapshot of Redis began, and Redis does not have it
    acked_twice        two acks, or a second end without a redrive between
    started_after_ack  a delivery after the ack
    open               no end yet; `in_redis` of them were in the snapshot
    unsure             absent like a lost one, but its end may be in a hole of the journal, or in an event `unsure`
    duplicate_rows     rows that are there again: a copied file, two archivers; no message is accused because of them
    gaps               holes in the numbers of the journal, and why: `qworker.pipeline.jobs.record`
    untold             those of them in which anything may have happened: the journal was off, or new

**The snapshot of Redis.** Messages move while they are read, so absence alone proves nothing. In order: `taken` = the
server's time; then the messages; then the journal, to its end *after* that. A message counts as lost only if it is not
in the snapshot, has no end in that journal, and no event at or after `taken`: a message that moved during the read has
one (or, if deliveries are not journalled, moved only downstream, in the direction of the read). If any are lost, all is
done again, and only messages that were missing both times are lost. Without a snapshot `lost` is None: unknown.

**Mode `outcomes`** has no `sent`: a message that vanishes before its first event leaves no trace. `unheard` names such
queues; there, `lost` covers messages that were received at least once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.audit_result import HOLES, SAMPLES, AuditResult, iso
from qworker.pipeline.jobs.lifecycle import DELIVERED, lifecycles, order
from qworker.pipeline.jobs.record import IN_RECORD, UNKNOWN, Hole, Record, Seen, examine
from qworker.pipeline.source.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AuditResult", "Snapshot", "Window", "audit", "lost_ids"]

_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
#: The columns of a judged lifecycle that are kept: the rest is not even computed.
_JUDGED: Final = (
    *("queue", "shard", "message_id", "task", "sent_ts", "sent_seen", "last_event", "end_event"),
    *("last_ts", "acks", "redrives", "attempts", "state", "stored", "first_ack"),
    *("lost", "unsure", "acked_twice", "delivered_late"),
)


@dataclass(frozen=True, slots=True)
class Window:
    """Messages sent from `since` (inclusive) until `until` (exclusive); None: no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def holds(self) -> Column:
        """Whether a row's sent_ts is in the window."""
        from pyspark.sql import functions as F

        test = F.lit(True)
        if self.since is not None:
            test = test & (F.col("sent_ts") >= F.lit(self.since))
        if self.until is not None:
            test = test & (F.col("sent_ts") < F.lit(self.until))
        return test

    def reaches(self, hole: Hole) -> bool:
        """Whether a hole may hide events of the window, among them one at the beginning of the data."""
        return self.since is None or hole.until is None or hole.until > self.since


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The messages in Redis, read from the time `taken` on. Columns: queue, shard, message_id, state."""

    taken: datetime
    messages: DataFrame


def audit(
    events: DataFrame,
    *,
    window: Window | None = None,
    snapshot: Snapshot | None = None,
    suspects: DataFrame | None = None,
    ends: Offsets | None = None,
    earlier: frozenset[str] = frozenset(),
    seen: Seen | None = None,
    on_judged: Callable[[DataFrame, Record], None] = lambda rows, record: None,
) -> AuditResult:
    """Audit events (columns of `journal`). They are read several times: persist expensive ones.

    `suspects`: the `lost_ids` of an earlier snapshot; only these can be lost. `ends`: the offsets of the archive among
    the events; `earlier`: queues of which it has earlier events, which were left out; `seen`: what an earlier audit has
    seen of them. `on_judged` gets the lifecycles and the record before they are dropped.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    window = window or Window()
    record = examine(events, ends, earlier, seen)
    events = record.events
    # On the disk: a small heap holds neither 10^8 messages nor the part of them that Spark would leave there.
    rows = (
        _judged(record, window, snapshot, suspects, seen)
        .select(*_JUDGED)
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        holes = [hole for hole in record.holes if window.reaches(hole)]
        sums, ended, unheard = _sums(rows)
        late = _started_late(events, rows)
        samples = {
            name: _samples(rows.where(name), snapshot is not None)
            for name in ("lost", "acked_twice", "unsure")
            if sums[name]
        }
        if sums["open"]:
            samples["open"] = _samples(
                rows.where("state = 'open' and not lost"), snapshot is not None
            )
        started_late = late.count() if sums["delivered_late"] else 0
        if started_late:
            keys = ["queue", "shard", "message_id"]
            samples["started_after_ack"] = _samples(
                rows.join(late, keys, "left_semi"), snapshot is not None
            )
        span = events.where("event not in ('gap', 'mode')").agg(
            F.count(F.lit(1)).alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last")
        )
        read = span.collect()[0]
        on_judged(rows, record)
        return AuditResult(
            since=window.since,
            until=window.until,
            first_event=_utc(read["first"]),
            last_event=_utc(read["last"]),
            events=read["events"],
            messages=sums["messages"],
            ended=ended,
            dead=sums["dead"],
            redriven=sums["redriven"],
            open=sums["open"] - sums["lost"],
            in_redis=sums["in_redis"] if snapshot is not None else None,
            lost=sums["lost"] if snapshot is not None else None,
            acked_twice=sums["acked_twice"],
            started_after_ack=started_late,
            unsure=sums["unsure"],
            duplicate_rows=sum(record.doubled.values()),
            gaps=len(holes),
            untold=sum(hole.why in UNKNOWN for hole in holes),
            missing=sum(hole.missing or 0 for hole in holes if hole.why not in IN_RECORD),
            holes=tuple(map(_shown, holes[:HOLES])),
            doubled=tuple(
                {"queue": queue, "shard": shard, "rows": number}
                for (queue, shard), number in sorted(record.doubled.items())
            ),
            samples=samples,
            unheard=unheard,
        )
    finally:
        rows.unpersist()


def lost_ids(
    events: DataFrame, *, window: Window, snapshot: Snapshot, seen: Seen | None = None
) -> DataFrame:
    """Messages that count as lost: queue, shard, message_id."""
    rows = _judged(examine(events, seen=seen), window, snapshot, None, seen)
    return rows.where("lost").select("queue", "shard", "message_id")


def _judged(
    record: Record,
    window: Window,
    snapshot: Snapshot | None,
    suspects: DataFrame | None,
    seen: Seen | None,
) -> DataFrame:
    """Lifecycles of the window, with the state in Redis, and a BOOLEAN for each finding."""
    from pyspark.sql import functions as F

    keys = ["queue", "shard", "message_id"]
    rows = lifecycles(record.events.where(window.holds()))
    if snapshot is None:
        rows = rows.withColumn("stored", F.lit(None).cast("string"))
    else:
        stored = snapshot.messages.groupBy(*keys).agg(F.max("state").alias("stored"))
        rows = rows.join(stored, keys, "left")
    rows = _beside_holes(rows, (*record.holes, *(seen.holes if seen is not None else ())))
    is_open = F.col("state") == "open"
    absent = is_open & F.col("stored").isNull() if snapshot is not None else F.lit(False)
    if suspects is not None:
        known = suspects.select(*keys, F.lit(True).alias("suspect"))
        rows = rows.join(known, keys, "left")
        absent = absent & F.coalesce("suspect", F.lit(False))
    quiet = F.col("last_ts") < F.lit(snapshot.taken) if snapshot is not None else F.lit(False)
    doubtful = F.col("in_hole") | F.col("unsure")
    # A message that died is redriven before it ends again; that may be missing.
    over = (F.col("ends") + F.col("deaths") > F.col("redrives") + 1) & ~F.col("redrive_in_hole")
    gone = absent & quiet
    return rows.select(
        *(name for name in rows.columns if name != "unsure"),
        (gone & ~doubtful).alias("lost"),
        (gone & doubtful).alias("unsure"),
        ((F.col("acks") > 1) | (F.col("ends") > 1) | over).alias("acked_twice"),
        F.coalesce(F.col("last_delivery") > F.col("first_ack"), F.lit(False)).alias(
            "delivered_late"
        ),
    )


def _beside_holes(rows: DataFrame, holes: Iterable[Hole]) -> DataFrame:
    """Add `in_hole`: the end of a message may be in a hole, and `redrive_in_hole`: a redrive between two ends may be.

    It may be in every hole after its first event: events after that hole may be those of a late delivery.
    """
    from pyspark.sql import functions as F

    shards: dict[tuple[str, int], tuple[list[tuple[int, int]], datetime]] = {}
    for hole in holes:
        if hole.why in IN_RECORD:
            continue
        shard, until = (hole.queue, hole.shard), hole.until or _NEVER
        behind, time = shards.get(shard, ([], until))
        shards[shard] = [*behind, (hole.epoch, hole.after)], max(time, until)
    if not shards:
        return rows.withColumns({"in_hole": F.lit(False), "redrive_in_hole": F.lit(False)})
    known = rows.sparkSession.createDataFrame(
        [(*shard, behind, time) for shard, (behind, time) in shards.items()],
        "queue STRING, shard INT, behind ARRAY<STRUCT<epoch: BIGINT, number: BIGINT>>, until TIMESTAMP",
    )
    # By position; and by time, for epochs that a clock set back has put in another order.
    inside = (F.array_max("behind") >= F.col("first")) | (F.col("first_ts") < F.col("until"))
    between = F.exists("behind", lambda at: (at >= F.col("first_over")) & (at < F.col("last_over")))
    return (
        rows.join(F.broadcast(known), ["queue", "shard"], "left")
        .withColumns(
            {
                "in_hole": F.coalesce(inside, F.lit(False)),
                "redrive_in_hole": F.coalesce(between, F.lit(False)),
            }
        )
        .drop("behind", "until")
    )


def _started_late(events: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages with a delivery after their first ack that was also received or started after it.

    Only messages whose last delivery comes after their first ack are read: on a clean run there are none.
    """
    from pyspark.sql import Window as Rows
    from pyspark.sql import functions as F

    keys = ["queue", "shard", "message_id"]
    suspects = rows.where("delivered_late").select(*keys, "first_ack")
    acked_ts = F.min(F.when(F.col("event") == "acked", F.col("ts"))).over(Rows.partitionBy(*keys))
    started = (F.col("event") == "delivered") | (
        F.greatest("delivered_ts", "started_ts") > F.col("acked_ts")
    )
    return (
        events.join(F.broadcast(suspects), keys)
        .withColumn("acked_ts", acked_ts)
        .where(F.col("event").isin(*DELIVERED) & (order() > F.col("first_ack")) & started)
        .select(*keys)
        .distinct()
    )


def _sums(rows: DataFrame) -> tuple[Counter[str], dict[str, int], tuple[str, ...]]:
    """Count lifecycles by finding, ended ones by their end, and list the queues without any event `sent`."""
    from pyspark.sql import functions as F

    tests = {
        "messages": "true",
        "dead": "state = 'dead'",
        "redriven": "redrives > 0",
        "open": "state = 'open'",
        "in_redis": "state = 'open' and stored is not null",
        **{name: name for name in ("lost", "acked_twice", "unsure", "delivered_late")},
    }
    end = F.when(F.col("state") == "ended", F.coalesce("end_event", "last_event"))
    groups = (
        rows.groupBy("queue", end.alias("end"))
        .agg(
            F.max("sent_seen").alias("heard"),
            *(F.count(F.when(F.expr(test), 1)).alias(name) for name, test in tests.items()),
        )
        .collect()
    )
    sums: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for row in groups:
        sums.update({name: row[name] for name in tests})
        if row.end is not None:
            ended[row.end] += row.messages
    heard = {row.queue for row in groups if row.heard}
    return sums, dict(ended), tuple(sorted({row.queue for row in groups} - heard))


def _shown(hole: Hole) -> dict[str, Any]:
    """A hole as JSON has it."""
    return {
        "queue": hole.queue,
        "shard": hole.shard,
        "epoch": hole.epoch,
        "after": hole.after,
        "missing": hole.missing,
        "from": iso(hole.since),
        "until": iso(hole.until),
        "why": hole.why,
    }


def _samples(rows: DataFrame, with_redis: bool) -> list[dict[str, Any]]:
    names = ["queue", "message_id", "task", "sent_ts", "last_event", "last_ts", "acks", "attempts"]
    sampled = rows.select(*names, "stored").orderBy("sent_ts", "message_id").limit(SAMPLES)
    return [
        {
            "queue": row.queue,
            "message_id": row.message_id,
            "task": row.task,
            "sent": iso(_utc(row.sent_ts)),
            "last_event": row.last_event,
            "last": iso(_utc(row.last_ts)),
            "acks": row.acks,
            "attempts": row.attempts,
            **({"in_redis": row.stored} if with_redis else {}),
        }
        for row in sampled.collect()
    ]


def _utc(moment: datetime | None) -> datetime | None:
    """Add the zone: Spark returns naive times in the zone of this process."""
    return None if moment is None else moment.astimezone(UTC)
