"""Audit: did every accepted message end exactly once? Over an archive, the live journal, or both.

A message belongs to the window in which it was sent: every event carries sent_ts, and what happened to it later is
read to the end of the data, so no life is cut by the window's end. One that was sent before the window is not judged.
Without a window, a message is judged by what is seen of it.

    lost               no end, no event since the look at Redis began, and Redis does not have it
    acked_twice        two acks, or a second end of the same life
    started_after_ack  a delivery after the ack
    open               no end yet; `in_redis` of them were seen there
    unsure             gone like a lost one, but its end may lie in a hole of the journal, or in an event `unsure`
    gaps               holes in the numbers of the journal

**The look at Redis.** Messages move while they are counted, so an absent one proves nothing by itself. In order:
`looked_ts` = the server's time; then the messages; then the journal to its end as it is *after* that. A message counts
as lost only if it was absent from that look, has no end in that journal, and no event at or after `looked_ts`: what
moved during the look has one (or, where deliveries are not journalled, moved only downstream, in the direction of the
look). Where any is found, the whole is done a second time, and only those are lost that were missing both times.
Without the look `lost` is None: unknown.

**Mode `outcomes`** has no `sent`: a message that vanishes before anything happened to it leaves no trace. `unheard`
names such queues; `lost` holds there for what was received once or more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.finding import SAMPLES, Audit, iso
from qworker.pipeline.jobs.lives import DELIVERED, find_gaps, lives, order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Audit", "Look", "Window", "audit", "lost_ids"]


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


@dataclass(frozen=True, slots=True)
class Look:
    """The messages of Redis, seen after `looked` began. Columns of `messages`: queue, shard, message_id, state."""

    looked: datetime
    messages: DataFrame


def audit(
    events: DataFrame,
    *,
    window: Window | None = None,
    look: Look | None = None,
    suspects: DataFrame | None = None,
) -> Audit:
    """Audit events (columns of `journal`, each once). They are read several times: persist what is expensive.

    `suspects`: the `lost_ids` of an earlier look; only these can be lost.
    """
    from pyspark.sql import functions as F

    window = window or Window()
    gaps = find_gaps(events).persist()
    rows = _judged(events, window, look, gaps, suspects).persist()
    try:
        holes = _holes(gaps, window)
        sums, ended, unheard = _sums(rows)
        late = _started_late(events, rows)
        samples = {
            name: _samples(rows.where(name), look is not None)
            for name in ("lost", "acked_twice", "unsure")
            if sums[name]
        }
        if sums["open"]:
            samples["open"] = _samples(rows.where("state = 'open' and not lost"), look is not None)
        started_late = late.count() if sums["delivered_late"] else 0
        if started_late:
            keys = ["queue", "shard", "message_id"]
            samples["started_after_ack"] = _samples(
                rows.join(late, keys, "left_semi"), look is not None
            )
        span = events.where("event <> 'gap'").agg(
            F.count(F.lit(1)).alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last")
        )
        read = span.collect()[0]
        return Audit(
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
            in_redis=sums["in_redis"] if look is not None else None,
            lost=sums["lost"] if look is not None else None,
            acked_twice=sums["acked_twice"],
            started_after_ack=started_late,
            unsure=sums["unsure"],
            gaps=len(holes),
            missing=sum(hole["missing"] or 0 for hole in holes),
            holes=tuple(holes[:SAMPLES]),
            samples=samples,
            unheard=unheard,
        )
    finally:
        rows.unpersist()
        gaps.unpersist()


def lost_ids(events: DataFrame, *, window: Window, look: Look) -> DataFrame:
    """The messages that count as lost: queue, shard, message_id."""
    rows = _judged(events, window, look, find_gaps(events), None)
    return rows.where("lost").select("queue", "shard", "message_id")


def _judged(
    events: DataFrame,
    window: Window,
    look: Look | None,
    gaps: DataFrame,
    suspects: DataFrame | None,
) -> DataFrame:
    """Lives in the window, with what Redis says, and a BOOLEAN for each finding."""
    from pyspark.sql import functions as F

    keys = ["queue", "shard", "message_id"]
    rows = lives(events.where(window.holds()))
    if look is None:
        rows = rows.withColumn("stored", F.lit(None).cast("string"))
    else:
        stored = look.messages.groupBy(*keys).agg(F.max("state").alias("stored"))
        rows = rows.join(stored, keys, "left")
    # After the last hole of a queue the journal is whole: nothing that ended there can have been missed.
    last_hole = gaps.groupBy("queue", "shard").agg(
        F.max(F.struct("epoch", F.col("after").alias("number"))).alias("hole")
    )
    rows = rows.join(F.broadcast(last_hole), ["queue", "shard"], "left")
    is_open = F.col("state") == "open"
    in_hole = F.coalesce(F.col("hole") >= F.col("last"), F.lit(False))
    absent = is_open & F.col("stored").isNull() if look is not None else F.lit(False)
    if suspects is not None:
        known = suspects.select(*keys, F.lit(True).alias("suspect"))
        rows = rows.join(known, keys, "left")
        absent = absent & F.coalesce("suspect", F.lit(False))
    quiet = F.col("last_ts") < F.lit(look.looked) if look is not None else F.lit(False)
    doubtful = in_hole | F.col("unsure")
    over = F.col("ends") + F.col("deaths") > F.col("redrives") + 1
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


def _started_late(events: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages with a delivery after their first ack that was also received or started after it.

    Only messages whose last delivery comes after their first ack are looked at: on a clean run there are none.
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
    """Count lives by finding, those that ended by their end, and name the queues whose sends were not seen."""
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
    found = (
        rows.groupBy("queue", end.alias("end"))
        .agg(
            F.max("sent_seen").alias("heard"),
            *(F.count(F.when(F.expr(test), 1)).alias(name) for name, test in tests.items()),
        )
        .collect()
    )
    sums: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for row in found:
        sums.update({name: row[name] for name in tests})
        if row.end is not None:
            ended[row.end] += row.messages
    heard = {row.queue for row in found if row.heard}
    return sums, dict(ended), tuple(sorted({row.queue for row in found} - heard))


def _holes(holes: DataFrame, window: Window) -> list[dict[str, Any]]:
    """Holes that may hold events of the window; one at the beginning of the data counts if the window reaches there."""
    from pyspark.sql import functions as F

    if window.since is not None:
        holes = holes.where(F.col("until_ts") > F.lit(window.since))
    rows = holes.orderBy("queue", "shard", "epoch", "after").collect()
    return [
        {
            "queue": row.queue,
            "shard": row.shard,
            "epoch": row.epoch,
            "after": row.after,
            "missing": row.missing,
            "from": iso(_utc(row.from_ts)),
            "until": iso(_utc(row.until_ts)),
        }
        for row in rows
    ]


def _samples(rows: DataFrame, looked: bool) -> list[dict[str, Any]]:
    names = ["queue", "message_id", "task", "sent_ts", "last_event", "last_ts", "acks", "attempts"]
    found = rows.select(*names, "stored").orderBy("sent_ts", "message_id").limit(SAMPLES).collect()
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
            **({"in_redis": row.stored} if looked else {}),
        }
        for row in found
    ]


def _utc(moment: datetime | None) -> datetime | None:
    """Spark gives times of this process's zone, without saying so."""
    return None if moment is None else moment.astimezone(UTC)
