"""The report's aggregates: all that Spark computes for it.

Each function takes the events (columns of `journal`, without gaps) or the lifecycles made of them, and returns rows of
a table of `qworker.pipeline.report.sums`, few for any number of events. `bucket` is the whole part of seconds since
1970 / width_s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.lifecycle import final_end
from qworker.pipeline.report.sums import BINS_PER_DECADE, TABLES, Key, Sums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

__all__ = ["Targets", "count_events", "count_messages", "dead_letters", "overview", "reported"]

#: Maximum number of rows of a table by free text (error classes, workers), and of one by bins of these.
_MOST: Final = 500
_MOST_BINS: Final = 500_000
#: Events of attempts that failed.
_FAILED: Final = ("nacked", "timed_out", "dead")
_CLOSED: Final = (*_FAILED, "acked", "released", "discarded")
#: The columns of lifecycles of which a report is made.
_REPORTED: Final = (
    *("queue", "shard", "message_id", "sent_ts", "due_ts", "last_ts", "state", "end_event"),
    *("attempts", "last_reason", "last_error"),
)
#: Targets in ms: by queue, and of the others.
Targets = tuple[Mapping[str, float], float]


def reported(lifecycles: DataFrame) -> DataFrame:
    """Keep the columns of lifecycles that a report counts, on the disk: unpersist them."""
    from pyspark import StorageLevel

    return lifecycles.select(*_REPORTED).persist(StorageLevel.DISK_ONLY)


def overview(events: DataFrame) -> tuple[int, int, int] | None:
    """Number of events, and first and last ts in µs; None without any."""
    from pyspark.sql import functions as F

    row = events.agg(
        F.count(F.lit(1)).alias("rows"),
        F.unix_micros(F.min("ts")).alias("first_us"),
        F.unix_micros(F.max("ts")).alias("last_us"),
    ).collect()[0]
    return (row.rows, row.first_us, row.last_us) if row.rows else None


def count_events(events: DataFrame, sums: Sums) -> None:
    """Add events to the tables that are of events."""
    frames = {
        "flow": _flow(events, sums.width_s),
        "durations": _durations(events, sums.width_s),
        "tasks": _tasks(events),
        "failures": _failures(events),
        "workers": _workers(events),
    }
    for name, key, values in _rows(frames):
        sums.add(name, [(key, values)])


def count_messages(lifecycles: DataFrame, targets: Targets, *sums: Sums) -> None:
    """Add lifecycles to the tables that are of messages: of `sums` to that which their column `part` counts, from 0."""
    width_s = sums[0].width_s
    frames = {
        "arrivals": _arrivals(lifecycles, width_s),
        "backlog": _backlog(lifecycles, width_s),
        "attempts": _attempts(lifecycles),
        "sla": _sla(lifecycles, targets),
    }
    for name, (part, *key), values in _rows(frames, "part"):
        sums[part].add(name, [(tuple(key), values)])


def _rows(
    frames: Mapping[str, DataFrame], *before: str
) -> Iterator[tuple[str, Key, Sequence[int]]]:
    """Read the rows of tables in one job: name, key behind some other columns, and values."""
    from pyspark.sql import functions as F

    def alike(name: str, frame: DataFrame) -> DataFrame:
        table = TABLES[name]
        # As JSON, because keys of different tables have different types.
        key = F.to_json(F.struct(*before, *table.keys), {"ignoreNullFields": "false"})
        values = F.array(
            *(F.coalesce(F.col(each), F.lit(0)).cast("bigint") for each in table.values)
        )
        return frame.select(F.lit(name).alias("name"), key.alias("key"), values.alias("values"))

    union = reduce(
        lambda one, other: one.unionByName(other), (alike(*each) for each in frames.items())
    )
    for row in union.collect():
        yield row.name, tuple(json.loads(row.key).values()), row["values"]


def _failed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_FAILED) & (F.col("attempt") > 0)


def _closed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_CLOSED) & (F.col("attempt") > 0)


def _bucket(column: str, width_s: int) -> Column:
    from pyspark.sql import functions as F

    return F.floor(F.unix_micros(column) / (width_s * 1_000_000))


def _us(column: str) -> Column:
    """Milliseconds as whole microseconds: their sum is the same in any order. Null for what is not a number."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast(round({column} * 1000) as bigint)")


def _bin(us: Column) -> Column:
    """The bin of a duration in µs, which begins at 10 ^ (bin / BINS_PER_DECADE) ms; below 1 µs it is that of 1 µs."""
    from pyspark.sql import functions as F

    return F.floor(F.log10(F.greatest(us, F.lit(1)) / 1000) * BINS_PER_DECADE + 1e-9)


def _count(test: Column) -> Column:
    from pyspark.sql import functions as F

    return F.count(F.when(test, 1))


def _flow(events: DataFrame, width_s: int) -> DataFrame:
    """busy_us: the time that attempts ran which closed."""
    from pyspark.sql import functions as F

    event = F.col("event")
    return events.groupBy("queue", _bucket("ts", width_s).alias("bucket")).agg(
        _count(event == "acked").alias("acked"),
        _count(final_end() & (event != "acked")).alias("ended"),
        _count(event == "dead").alias("dead"),
        _count(_failed()).alias("failed"),
        F.sum(_us("run_ms")).alias("busy_us"),
    )


def _durations(events: DataFrame, width_s: int) -> DataFrame:
    from pyspark.sql import functions as F

    pairs = F.explode(
        F.array(
            F.struct(F.lit("wait").alias("kind"), _us("wait_ms").alias("us")),
            F.struct(F.lit("run").alias("kind"), _us("run_ms").alias("us")),
        )
    )
    return (
        events.where(_closed())
        .select(_bucket("ts", width_s).alias("bucket"), pairs.alias("pair"))
        .where("pair.us is not null")
        .groupBy("pair.kind", "bucket", _bin(F.col("pair.us")).alias("bin"))
        .agg(F.count(F.lit(1)).alias("attempts"), F.sum("pair.us").alias("us"))
    )


def _tasks(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        _of_attempts(events.where(_closed()), "task")
        .orderBy(F.desc("attempts"), "task", "bin")
        .limit(_MOST_BINS)
    )


def _workers(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    closed = events.where(_closed() & F.col("worker").isNotNull() & (F.col("worker") != ""))
    return (
        _of_attempts(closed, "worker", "task")
        .orderBy(F.desc("attempts"), "worker", "task", "bin")
        .limit(_MOST_BINS)
    )


def _of_attempts(events: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as F

    us = F.col("us")
    return (
        events.withColumns(
            {"us": _us("run_ms"), "task": F.coalesce("task", F.lit("unknown")), "fell": _failed()}
        )
        .groupBy(*keys, _bin(us).alias("bin"))
        .agg(
            F.count(F.lit(1)).alias("attempts"),
            _count(F.col("fell")).alias("failed"),
            F.sum(us).alias("run_us"),
            F.sum(F.when(F.col("fell"), us)).alias("failed_us"),
        )
    )


def _failures(events: DataFrame) -> DataFrame:
    """By task and error: class, else reason, else event."""
    from pyspark.sql import functions as F

    return (
        events.where(_failed())
        .groupBy(
            F.coalesce("task", F.lit("unknown")).alias("task"),
            F.coalesce("error_class", "reason", "event").alias("error"),
        )
        .agg(F.count(F.lit(1)).alias("failed"), F.sum(_us("run_ms")).alias("run_us"))
        .orderBy(F.desc("failed"), "task", "error")
        .limit(_MOST_BINS)
    )


def _arrivals(lifecycles: DataFrame, width_s: int) -> DataFrame:
    """By the bucket in which a message was sent."""
    from pyspark.sql import functions as F

    return (
        lifecycles.where("sent_ts is not null")
        .groupBy("part", "queue", _bucket("sent_ts", width_s).alias("bucket"))
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def _backlog(lifecycles: DataFrame, width_s: int) -> DataFrame:
    """oldest_us: the earliest time due. At most one row per queue and pair of buckets."""
    from pyspark.sql import functions as F

    until = F.when(F.col("state") != "open", _bucket("last_ts", width_s))
    return (
        lifecycles.where("due_ts is not null")
        .groupBy("part", "queue", _bucket("due_ts", width_s).alias("begun"), until.alias("until"))
        .agg(F.count(F.lit(1)).alias("messages"), F.unix_micros(F.min("due_ts")).alias("oldest_us"))
        .where("until is null or until > begun")
    )


def _attempts(lifecycles: DataFrame) -> DataFrame:
    """By attempts (1 to 10, more counts as 10) and state, of messages that ended or died after a delivery."""
    from pyspark.sql import functions as F

    return (
        lifecycles.where("state <> 'open' and attempts > 0")
        .groupBy("part", F.least("attempts", F.lit(10)).alias("attempts"), "state")
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def _sla(lifecycles: DataFrame, targets: Targets) -> DataFrame:
    """From due to the end. done counts acked and dead messages; only an acked one can be within its target."""
    from pyspark.sql import functions as F

    by_queue, others = targets
    target = F.lit(others)
    for queue, target_ms in by_queue.items():
        target = F.when(F.col("queue") == queue, F.lit(target_ms)).otherwise(target)
    acked = F.col("end_event") == "acked"
    took = F.unix_micros("last_ts") - F.unix_micros("due_ts")
    return (
        lifecycles.where(acked | (F.col("state") == "dead"))
        .withColumns({"took_us": took, "acked": F.coalesce(acked, F.lit(False))})
        .groupBy("part", "queue", F.when(F.col("acked"), _bin(F.col("took_us"))).alias("bin"))
        .agg(
            F.count(F.lit(1)).alias("done"),
            _count(F.col("acked") & (F.col("took_us") <= target * 1000)).alias("within"),
            _count(~F.col("acked")).alias("failed"),
            F.sum(F.when(F.col("acked"), F.col("took_us"))).alias("took_us"),
        )
    )


def dead_letters(lifecycles: DataFrame, samples: int = 3) -> list[Row]:
    """By queue, reason and error class of messages dead at the end: dead, first_ts, last_ts, samples (newest ids)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    group = ["queue", "reason", "error"]
    newest = Window.partitionBy(*group).orderBy(F.desc("last_ts"), "message_id")
    return list(
        lifecycles.where("state = 'dead'")
        .select(
            "queue",
            F.coalesce("last_reason", F.lit("unknown")).alias("reason"),
            F.coalesce("last_error", F.lit("")).alias("error"),
            "message_id",
            "last_ts",
        )
        .withColumn("rank", F.row_number().over(newest))
        .groupBy(*group)
        .agg(
            F.count(F.lit(1)).alias("dead"),
            F.min("last_ts").alias("first_ts"),
            F.max("last_ts").alias("last_ts"),
            F.array_sort(
                F.collect_list(F.when(F.col("rank") <= samples, F.col("message_id")))
            ).alias("samples"),
        )
        .orderBy(F.desc("dead"), *group)
        .limit(_MOST)
        .collect()
    )
