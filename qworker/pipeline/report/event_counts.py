"""Tables of events that Spark counts for a report: flow, durations, tasks, failures, workers, limits.

Each function takes the events (columns of `journal`, without gaps) and returns rows of a table of
`qworker.pipeline.report.sums`, few for any number of events. `bucket` is a number of `columns.bucket`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.lifecycle import final_end
from qworker.pipeline.report.columns import bin_of, bucket, count_if, microseconds, rows_of
from qworker.pipeline.report.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["count_events", "overview"]

#: Maximum number of rows of a table by free text (error classes, workers) and by bins of these.
_MOST_BINS: Final = 500_000
#: Events of attempts that failed.
_FAILED: Final = ("nacked", "timed_out", "dead")
#: The reasons of deliveries: what a message has waited for.
_LIMITS: Final = ("concurrency", "rate", "parent_concurrency", "parent_rate", "turn")
_CLOSED: Final = (*_FAILED, "acked", "released", "discarded")


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
        "limits": _limits(events),
    }
    for name, key, values in rows_of(frames):
        sums.add(name, [(key, values)])


def _failed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_FAILED) & (F.col("attempt") > 0)


def _closed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_CLOSED) & (F.col("attempt") > 0)


def _flow(events: DataFrame, width_s: int) -> DataFrame:
    """busy_us: the time that attempts ran which closed."""
    from pyspark.sql import functions as F

    event = F.col("event")
    return events.groupBy("queue", bucket("ts", width_s).alias("bucket")).agg(
        count_if(event == "acked").alias("acked"),
        count_if(final_end() & (event != "acked")).alias("ended"),
        count_if(event == "dead").alias("dead"),
        count_if(_failed()).alias("failed"),
        F.sum(microseconds("run_ms")).alias("busy_us"),
    )


def _durations(events: DataFrame, width_s: int) -> DataFrame:
    from pyspark.sql import functions as F

    pairs = F.explode(
        F.array(
            F.struct(F.lit("wait").alias("kind"), microseconds("wait_ms").alias("us")),
            F.struct(F.lit("run").alias("kind"), microseconds("run_ms").alias("us")),
        )
    )
    return (
        events.where(_closed())
        .select(bucket("ts", width_s).alias("bucket"), pairs.alias("pair"))
        .where("pair.us is not null")
        .groupBy("pair.kind", "bucket", bin_of(F.col("pair.us")).alias("bin"))
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
            {
                "us": microseconds("run_ms"),
                "task": F.coalesce("task", F.lit("unknown")),
                "fell": _failed(),
            }
        )
        .groupBy(*keys, bin_of(us).alias("bin"))
        .agg(
            F.count(F.lit(1)).alias("attempts"),
            count_if(F.col("fell")).alias("failed"),
            F.sum(us).alias("run_us"),
            F.sum(F.when(F.col("fell"), us)).alias("failed_us"),
        )
    )


def _limits(events: DataFrame) -> DataFrame:
    """By queue and limit: bins of the times that messages waited which were held back by it."""
    from pyspark.sql import functions as F

    us = microseconds("wait_ms")
    return (
        events.where((F.col("event") == "delivered") & F.col("reason").isin(*_LIMITS))
        .where("wait_ms is not null")
        .groupBy("queue", F.col("reason").alias("limit"), bin_of(us).alias("bin"))
        .agg(F.count(F.lit(1)).alias("waits"), F.sum(us).alias("us"))
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
        .agg(F.count(F.lit(1)).alias("failed"), F.sum(microseconds("run_ms")).alias("run_us"))
        .orderBy(F.desc("failed"), "task", "error")
        .limit(_MOST_BINS)
    )
