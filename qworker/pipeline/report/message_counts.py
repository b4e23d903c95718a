"""Tables of messages that Spark counts for a report: arrivals, backlog, attempts, targets; and dead letters.

Each function takes lifecycles and returns rows of a table of `qworker.pipeline.report.sums`, few for any number of
messages. `bucket` is a number of `columns.bucket`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.holes import utc
from qworker.pipeline.jobs.local import kept
from qworker.pipeline.report.columns import bin_of, bucket, count_if, rows_of
from qworker.pipeline.report.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["IS_RUN", "Targets", "count_messages", "dead_letters", "overview", "reported"]

#: Whether a lifecycle is that of a run: it has recorded a step, slept or waited.
IS_RUN: Final = "steps > 0 or parks > 0"
#: Maximum number of rows of a table by free text (reasons, error classes).
_MOST: Final = 500
#: The columns of lifecycles of which a report is made.
_REPORTED: Final = (
    *("queue", "shard", "message_id", "life", "sent_ts", "due_ts", "last_ts", "state", "end_event"),
    *("attempts", "last_event", "last_reason", "last_error", "task", "steps", "parks"),
)
#: Targets in ms: by queue, and of the others.
Targets = tuple[Mapping[str, float], float]


def reported(lifecycles: DataFrame) -> DataFrame:
    """Keep the columns of lifecycles that a report counts: unpersist them."""
    return kept(lifecycles.select(*_REPORTED))


def overview(lifecycles: DataFrame) -> tuple[datetime | None, bool]:
    """The time of the last event of all messages (None without any), and whether any of them is a run.

    Runs are counted by a join over all events, which most archives can do without.
    """
    from pyspark.sql import functions as F

    row = lifecycles.agg(
        F.max("last_ts").alias("newest"), F.max(F.expr(IS_RUN)).alias("has_runs")
    ).collect()[0]
    return utc(row.newest), bool(row.has_runs)


def count_messages(lifecycles: DataFrame, targets: Targets, *sums: Sums) -> None:
    """Add lifecycles to the tables that are of messages: of `sums` to that which their column `part` counts, from 0."""
    width_s = sums[0].width_s
    frames = {
        "arrivals": _arrivals(lifecycles, width_s),
        "backlog": _backlog(lifecycles, width_s),
        "attempts": _attempts(lifecycles),
        "sla": _sla(lifecycles, targets),
    }
    for name, (part, *key), values in rows_of(frames, "part"):
        sums[part].add(name, [(tuple(key), values)])


def _arrivals(lifecycles: DataFrame, width_s: int) -> DataFrame:
    """By the bucket in which a message was sent."""
    from pyspark.sql import functions as F

    return (
        lifecycles.where("sent_ts is not null")
        .groupBy("part", "queue", bucket("sent_ts", width_s).alias("bucket"))
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def _backlog(lifecycles: DataFrame, width_s: int) -> DataFrame:
    """oldest_us: the earliest time due. At most one row per queue and pair of buckets."""
    from pyspark.sql import functions as F

    until = F.when(F.col("state") != "open", bucket("last_ts", width_s))
    return (
        lifecycles.where("due_ts is not null")
        .groupBy("part", "queue", bucket("due_ts", width_s).alias("begun"), until.alias("until"))
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
        .groupBy("part", "queue", F.when(F.col("acked"), bin_of(F.col("took_us"))).alias("bin"))
        .agg(
            F.count(F.lit(1)).alias("done"),
            count_if(F.col("acked") & (F.col("took_us") <= target * 1000)).alias("within"),
            count_if(~F.col("acked")).alias("failed"),
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
