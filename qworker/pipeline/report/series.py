"""The report's aggregates: all that Spark computes for it.

Each function takes the events (columns of `journal`, without gaps) or the lifecycles made of them, and returns few
rows, for any number of events. `bucket` is the whole part of seconds since 1970 / bucket_s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.lifecycle import final_end

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

__all__ = [
    "BINS_PER_DECADE",
    "arrivals",
    "attempt_counts",
    "backlog_intervals",
    "dead_letters",
    "durations",
    "failures",
    "flow",
    "overview",
    "rates",
    "sla",
    "tasks",
    "workers",
]

#: Bars of the histograms between 1 ms and 10 ms, 10 ms and 100 ms …
BINS_PER_DECADE: Final = 5
#: Relative error of percentiles: 1 / this, in rank.
_ACCURACY: Final = 2000
_SHARES: Final = (0.5, 0.95, 0.99)
#: Maximum number of rows of a table by free text (error classes, workers).
_MOST: Final = 500
#: Events of attempts that failed.
_FAILED: Final = ("nacked", "timed_out", "dead")
_CLOSED: Final = (*_FAILED, "acked", "released", "discarded")


def _failed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_FAILED) & (F.col("attempt") > 0)


def _closed() -> Column:
    from pyspark.sql import functions as F

    return F.col("event").isin(*_CLOSED) & (F.col("attempt") > 0)


def _bucket(column: str, bucket_s: int) -> Column:
    from pyspark.sql import functions as F

    return F.floor(F.unix_micros(column) / (bucket_s * 1_000_000)).alias("bucket")


def _percentiles(column: str, test: Column | None = None) -> Column:
    from pyspark.sql import functions as F

    value = F.col(column) if test is None else F.when(test, F.col(column))
    return F.percentile_approx(value, list(_SHARES), _ACCURACY).alias(f"{column}_p")


def _count(test: Column, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.count(F.when(test, 1)).alias(name)


def flow(events: DataFrame, bucket_s: int) -> list[Row]:
    """By queue and bucket: acked, ended (else), dead, failed attempts, busy_ms (run time of attempts that closed)."""
    from pyspark.sql import functions as F

    event = F.col("event")
    return list(
        events.groupBy("queue", _bucket("ts", bucket_s))
        .agg(
            _count(event == "acked", "acked"),
            _count(final_end() & (event != "acked"), "ended"),
            _count(event == "dead", "dead"),
            _count(_failed(), "failed"),
            F.coalesce(F.sum("run_ms"), F.lit(0.0)).alias("busy_ms"),
        )
        .collect()
    )


def rates(events: DataFrame, bucket_s: int) -> list[Row]:
    """By bucket, and once over all of them (bucket null), of attempts that closed in any queue.

    wait_ms_p, run_ms_p: arrays of p50, p95, p99; null without any.
    """
    return list(
        events.where(_closed())
        .select(_bucket("ts", bucket_s), "wait_ms", "run_ms")
        .rollup("bucket")
        .agg(_percentiles("wait_ms"), _percentiles("run_ms"))
        .collect()
    )


def backlog_intervals(lifecycles: DataFrame, bucket_s: int, first: int, last: int) -> list[Row]:
    """By queue, bucket in which a message became due (first - 1: before), and bucket of its end (last + 1: none yet).

    messages, oldest_ts (the earliest time due). At most one row per queue and pair of buckets.
    """
    from pyspark.sql import functions as F

    begun, ended = _bucket("due_ts", bucket_s), _bucket("last_ts", bucket_s)
    until = F.when(F.col("state") == "open", F.lit(last + 1)).otherwise(ended)
    return list(
        lifecycles.groupBy(
            "queue",
            F.greatest(begun, F.lit(first - 1)).alias("begun"),
            F.least(until, F.lit(last + 1)).alias("until"),
        )
        .agg(F.count(F.lit(1)).alias("messages"), F.min("due_ts").alias("oldest_ts"))
        .collect()
    )


def arrivals(lifecycles: DataFrame, bucket_s: int) -> list[Row]:
    """By queue and bucket of sending: messages."""
    return list(lifecycles.groupBy("queue", _bucket("sent_ts", bucket_s)).count().collect())


def durations(events: DataFrame) -> list[Row]:
    """By kind (`wait`, `run`) and bin (whole part of log10(ms) x BINS_PER_DECADE; below 0.1 ms is that): count."""
    from pyspark.sql import functions as F

    pairs = F.explode(
        F.array(
            F.struct(F.lit("wait").alias("kind"), F.col("wait_ms").alias("ms")),
            F.struct(F.lit("run").alias("kind"), F.col("run_ms").alias("ms")),
        )
    )
    number = F.floor(F.log10(F.greatest("pair.ms", F.lit(0.1))) * BINS_PER_DECADE + 1e-9)
    return list(
        events.where(_closed())
        .select(pairs.alias("pair"))
        .where("pair.ms is not null")
        .groupBy("pair.kind", number.alias("bin"))
        .count()
        .collect()
    )


def attempt_counts(lifecycles: DataFrame) -> list[Row]:
    """By attempts (1 to 10, more counts as 10) and state, of messages that ended or died after a delivery: count."""
    from pyspark.sql import functions as F

    return list(
        lifecycles.where("state <> 'open' and attempts > 0")
        .groupBy(F.least("attempts", F.lit(10)).alias("attempts"), "state")
        .count()
        .collect()
    )


def tasks(events: DataFrame) -> list[Row]:
    """By task: attempts, failed, run_ms, failed_ms, run_ms_p."""
    from pyspark.sql import functions as F

    return list(
        events.where(_closed())
        .groupBy(F.coalesce("task", F.lit("unknown")).alias("task"))
        .agg(
            F.count(F.lit(1)).alias("attempts"),
            _count(_failed(), "failed"),
            F.coalesce(F.sum("run_ms"), F.lit(0.0)).alias("run_ms"),
            F.coalesce(F.sum(F.when(_failed(), F.col("run_ms"))), F.lit(0.0)).alias("failed_ms"),
            _percentiles("run_ms"),
        )
        .orderBy(F.desc("run_ms"), "task")
        .limit(_MOST)
        .collect()
    )


def failures(events: DataFrame) -> list[Row]:
    """By task and error (class, else reason, else event) of failed attempts: count, run_ms."""
    from pyspark.sql import functions as F

    return list(
        events.where(_failed())
        .groupBy(
            F.coalesce("task", F.lit("unknown")).alias("task"),
            F.coalesce("error_class", "reason", "event").alias("error"),
        )
        .agg(
            F.count(F.lit(1)).alias("failed"),
            F.coalesce(F.sum("run_ms"), F.lit(0.0)).alias("run_ms"),
        )
        .orderBy(F.desc("failed"), "task", "error")
        .limit(_MOST)
        .collect()
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


def sla(lifecycles: DataFrame, targets_ms: dict[str, float], default_ms: float) -> list[Row]:
    """By queue: time of messages from due to their end. done, within the target, failed, took_ms_p, target_ms.

    done counts acked and dead messages; only an acked one can be within its target.
    """
    from pyspark.sql import functions as F

    target = F.lit(default_ms)
    for queue, target_ms in targets_ms.items():
        target = F.when(F.col("queue") == queue, F.lit(target_ms)).otherwise(target)
    took = (F.unix_micros("last_ts") - F.unix_micros("due_ts")) / 1000
    acked = F.col("end_event") == "acked"
    return list(
        lifecycles.where(acked | (F.col("state") == "dead"))
        .withColumn("took_ms", took)
        .groupBy("queue")
        .agg(
            F.count(F.lit(1)).alias("done"),
            _count(acked & (F.col("took_ms") <= target), "within"),
            _count(~acked, "failed"),
            _percentiles("took_ms", acked),
            F.first(target).alias("target_ms"),
        )
        .orderBy("queue")
        .collect()
    )


def workers(events: DataFrame) -> list[Row]:
    """By worker and task: attempts, failed, run_ms, run_ms_p."""
    from pyspark.sql import functions as F

    return list(
        events.where(_closed() & F.col("worker").isNotNull() & (F.col("worker") != ""))
        .groupBy("worker", F.coalesce("task", F.lit("unknown")).alias("task"))
        .agg(
            F.count(F.lit(1)).alias("attempts"),
            _count(_failed(), "failed"),
            F.coalesce(F.sum("run_ms"), F.lit(0.0)).alias("run_ms"),
            _percentiles("run_ms"),
        )
        .orderBy(F.desc("run_ms"))
        .limit(_MOST * 4)
        .collect()
    )


def overview(events: DataFrame) -> dict[str, Any]:
    """rows, first and last ts of the events."""
    from pyspark.sql import functions as F

    row = events.agg(
        F.count(F.lit(1)).alias("rows"), F.min("ts").alias("first"), F.max("ts").alias("last")
    ).collect()[0]
    return dict(row.asDict())
