"""The verdict on groups of calls: those whose calls have ended are decided, and were begun.

The ends of calls travel through outboxes: a group may take `IN_TRANSIT` from the end that decides it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.compositions import (
    GROUP_KEYS,
    calls,
    groups,
    groups_frame,
    is_composed,
)
from qworker.pipeline.jobs.holes import IN_RECORD, Shard
from qworker.pipeline.jobs.lifecycle import KEYS, lifecycles
from qworker.pipeline.jobs.local import local_frame, together

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from qworker.pipeline.jobs.record import Record, Seen
    from qworker.pipeline.jobs.verdicts import Window

__all__ = ["IN_TRANSIT", "judged_groups", "known_since", "made_groups"]

#: How long the end of a call may take until it decides its group.
IN_TRANSIT: Final = timedelta(minutes=10)
#: Columns that a verdict is made of.
_BESIDE: Final = {
    *("doubtful", "heard", "known_ts", "begun_ts_of_record", "reused", "gaps"),
    *("news_begun", "news_decided", "named"),
}
#: The groups of one id that wait, summed up, in SQL.
_OF_AN_ID: Final = (
    "max(made_ts) as made_ts",
    "max(size) as size",
    "max(policy) as policy",
    # Two groups of an id in different queues: whose call a message is cannot be told.
    "count(1) > 1 as ambiguous",
)
_OK: Final = "state = 'ended' and ok"
_BAD: Final = "state = 'ended' and not coalesce(ok, false)"
_OVER: Final = "state in ('ended', 'dead')"
#: The calls of a group, summed up.
_OF_CALLS: Final = (
    "count(distinct member) as heard",
    f"count(distinct if({_OVER}, member, null)) as ended_or_dead",
    "count(distinct if(state = 'ended', member, null)) as ended",
    f"count(distinct if({_OK}, member, null)) as succeeded",
    f"min(if({_OK}, last_ts, null)) as ok_ts",
    f"min(if({_BAD}, last_ts, null)) as bad_ts",
    f"max(if({_OVER}, last_ts, null)) as over_ts",
    # A dead letter may be redriven in a hole; other ends stay.
    "max(state = 'dead' and hidden) as taken_back",
)
#: When the calls of a group, summed up, ended as its policy asks; null if they have not.
_MUST: Final = """
    case
        when policy = 'all' and ended_or_dead = size then over_ts
        when policy = 'successes' and bad_ts is not null then bad_ts
        when policy = 'successes' and succeeded = size then over_ts
        when policy = 'first' and ok_ts is not null then ok_ts
        when policy = 'first' and ended = size then over_ts
    end
"""
_FOREVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


def made_groups(composed: DataFrame, window: Window) -> DataFrame:
    """Groups of the window: the columns of `groups`, and `made_ts`."""
    from pyspark.sql import functions as F

    made_ts = F.timestamp_millis("made_ms")
    rows = groups(composed).withColumn("made_ts", F.coalesce(made_ts, "begun_ts", "decided_ts"))
    return rows.where(window.holds("made_ts"))


def judged_groups(
    rows: DataFrame,
    composed: DataFrame,
    record: Record,
    taken: datetime | None,
    seen: Seen | None,
) -> DataFrame:
    """The groups of `made_groups` with `must_ts`, `twice`, `undecided`, `unsure`.

    Those that an earlier run has named are not named again.
    """
    from pyspark.sql import functions as F

    waiting = rows.where("begun and decisions = 0").groupBy("group_id").agg(*map(F.expr, _OF_AN_ID))
    shards = _shards(record, taken, seen)
    rows = (
        rows.join(_due(composed, record.events, waiting, shards), ["group_id"], "left")
        .join(_last_events(record.events, rows), list(GROUP_KEYS), "left")
        .join(F.broadcast(shards), ["queue", "shard"], "left")
    )
    rows = _news(rows, record, seen)
    # An earlier version decides without telling: then its callback is there, or its run went on.
    is_callback = F.col("follows") == F.col("group_id")
    sent = (F.col("decisions") == 0) & is_callback & F.col("follows_ts").isNotNull()
    waits, due = F.col("outcome").isNull() & ~sent, F.col("must_ts")
    went_on = waits & F.coalesce(F.col("follows_ts") > due, F.lit(False))
    over = due + F.lit(IN_TRANSIT) < F.col("known_ts")
    late = F.coalesce(waits & ~went_on & ~F.col("named") & over, F.lit(False))
    hidden = _hidden("made_ts", "first") | F.coalesce("doubtful", F.lit(False))
    # Its calls may have ended in a part of their queues that was read before it began, and was not carried.
    ends_read = F.lit(False)
    if seen is not None and seen.groups.until is not None:
        unheard = F.coalesce(F.col("heard"), F.lit(0)) < F.col("size")
        dropped = F.col("made_ts") < F.lit(seen.groups.until)
        ends_read = waits & due.isNull() & unheard & F.col("news_begun") & ~F.col("named") & dropped
    # A decision whose beginning is missing: before the data, in a hole, or not told.
    before = F.coalesce(F.col("made_ts") <= F.col("begun_ts_of_record"), F.lit(False))
    unexplained = ~F.col("begun") & F.col("news_decided") & ~before & ~_may_have_begun()
    reused = F.coalesce(F.col("reused"), F.lit(False))
    outcome = F.when(sent, "ok").when(went_on, "untold").otherwise(F.col("outcome"))
    return rows.select(
        *(name for name in rows.columns if name not in {*_BESIDE, "outcome"}),
        outcome.alias("outcome"),
        ((F.col("decisions") > 1) & F.col("news_decided") & ~reused).alias("twice"),
        (late & ~hidden).alias("undecided"),
        ((late & hidden) | unexplained | F.coalesce(ends_read, F.lit(False))).alias("unsure"),
    )


def _news(rows: DataFrame, record: Record, seen: Seen | None) -> DataFrame:
    """Add BOOLEAN: `news_begun` and `news_decided`, if no earlier run has seen that; `named`, if one has named it."""
    from pyspark.sql import functions as F

    if seen is None:
        news = {"news_begun": F.lit(True), "news_decided": F.lit(True), "named": F.lit(False)}
        return rows.withColumns(news)
    fresh = groups(record.fresh.where(is_composed())).select(
        *GROUP_KEYS,
        F.col("begun").alias("news_begun"),
        (F.col("decisions") > 0).alias("news_decided"),
    )
    named = groups_frame(rows.sparkSession, sorted(seen.groups.named, key=str))
    return (
        rows.join(fresh, list(GROUP_KEYS), "left")
        .join(F.broadcast(named.withColumn("named", F.lit(True))), list(GROUP_KEYS), "left")
        .fillna(False, ["news_begun", "news_decided", "named"])
    )


def _due(
    composed: DataFrame, events: DataFrame, waiting: DataFrame, shards: DataFrame
) -> DataFrame:
    """When the calls of groups ended as their policy asks: group_id, must_ts, `doubtful`: an end may be taken back.

    `heard`: how many of its calls have an event.
    """
    from pyspark.sql import functions as F

    sums = (
        together(_ended_calls(events, waiting, shards), _failed_groups(composed))
        .groupBy("group_id")
        .agg(*map(F.expr, _OF_CALLS))
    )
    return waiting.join(sums, ["group_id"]).select(
        "group_id",
        "heard",
        F.expr(f"{_MUST} as must_ts"),
        F.expr("ambiguous or (policy = 'all' and taken_back) as doubtful"),
    )


def _ended_calls(events: DataFrame, waiting: DataFrame, shards: DataFrame) -> DataFrame:
    """The calls of waiting groups: group_id, member, state, ok BOOLEAN, last_ts, hidden BOOLEAN."""
    from pyspark.sql import functions as F

    of_calls = (
        calls(events)
        .join(waiting.select("group_id", "made_ts", "size"), ["group_id"])
        .where("member < size and sent_ts >= made_ts")
        .select(*events.columns)
    )
    rows = lifecycles(of_calls).join(F.broadcast(shards), ["queue", "shard"], "left")
    return calls(rows).select(
        "group_id",
        "member",
        "state",
        F.expr("end_event = 'acked' as ok"),
        "last_ts",
        _hidden("last_ts").alias("hidden"),
    )


def _failed_groups(composed: DataFrame) -> DataFrame:
    """The groups that are calls of other groups and ended without their callback: the columns of `_ended_calls`."""
    from pyspark.sql import functions as F

    return calls(
        groups(composed).where("outcome = 'failed'").withColumnRenamed("group_id", "message_id")
    ).select(
        "group_id",
        "member",
        F.lit("ended").alias("state"),
        F.lit(False).alias("ok"),
        F.col("decided_ts").alias("last_ts"),
        F.lit(False).alias("hidden"),
    )


def _last_events(events: DataFrame, rows: DataFrame) -> DataFrame:
    """When what follows a group that is not decided had its last event: GROUP_KEYS, follows_ts."""
    from pyspark.sql import functions as F

    followed = rows.where("decisions = 0").select(
        *GROUP_KEYS, "made_ts", F.col("follows").alias("message_id")
    )
    return (
        followed.join(events.select(*KEYS, "ts", "sent_ts"), list(KEYS))
        .where("message_id <> group_id or sent_ts >= made_ts")
        .groupBy(*GROUP_KEYS)
        .agg(F.max("ts").alias("follows_ts"))
    )


def known_since(record: Record, seen: Seen | None) -> dict[Shard, datetime]:
    """Shard → from when on the beginnings of its groups are known: carried, or among these events."""
    return dict(record.firsts) | ({} if seen is None else dict(seen.groups.begun))


def _shards(record: Record, taken: datetime | None, seen: Seen | None) -> DataFrame:
    """What the record has of each shard.

    queue, shard · known_ts: until when its events are known · begun_ts_of_record: from when on · reused BOOLEAN: two
    histories have the same numbers, and it is not known which counts · gaps: its holes.
    """
    import pyarrow as pa

    holes = [*record.holes, *(() if seen is None else seen.holes)]
    begun = known_since(record, seen)
    lasts = ({} if seen is None else dict(seen.lasts)) | dict(record.lasts)
    time, position = pa.timestamp("us", tz="UTC"), [("epoch", pa.int64()), ("number", pa.int64())]
    schema = pa.schema(
        [
            *(("queue", pa.string()), ("shard", pa.int32())),
            *(("known_ts", time), ("begun_ts_of_record", time), ("reused", pa.bool_())),
            ("gaps", pa.list_(pa.struct([("at", pa.struct(position)), ("until", time)]))),
        ]
    )
    rows = []
    for shard in {*begun, *lasts, *((hole.queue, hole.shard) for hole in holes)}:
        own = [hole for hole in holes if (hole.queue, hole.shard) == shard]
        gaps = [
            {"at": {"epoch": hole.epoch, "number": hole.after}, "until": hole.until or _FOREVER}
            for hole in own
            if hole.why not in IN_RECORD
        ]
        known = lasts.get(shard) if taken is None else taken
        reused = any(hole.why == "used twice" for hole in own)
        rows.append((*shard, known, begun.get(shard), reused, gaps))
    return local_frame(record.events.sparkSession, rows, schema)


def _hidden(since: str, first: str | None = None) -> Column:
    """Whether one of the `gaps` of the shard lies after this time, or this position: an event may be in it."""
    from pyspark.sql import functions as F

    behind = f"gap.until > {since}" + (f" or gap.at >= {first}" if first else "")
    return F.expr(f"coalesce(exists(gaps, gap -> {behind}), false)")


def _may_have_begun() -> Column:
    """Whether one of the `gaps` of the shard lies between the time when a group was made and its first event."""
    from pyspark.sql import functions as F

    return F.expr("coalesce(exists(gaps, gap -> gap.until > made_ts and gap.at < first), false)")
