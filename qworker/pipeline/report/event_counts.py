"""Tables of events that Spark counts for a report: flow, durations, tasks, failures, workers, limits.

Each is SQL over the events (columns of `journal`, without gaps), whose rows are those of a table of
`qworker.pipeline.report.sums`, few for any number of events. `bucket` is a number of `columns.bucket`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.lifecycle import FINAL_END
from qworker.pipeline.report.columns import bin_of, bucket, count_if, microseconds, rows_of
from qworker.pipeline.report.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["count_events", "overview"]

#: Maximum number of rows of a table by free text (error classes, workers) and by bins of these.
_MAX_BINS: Final = 500_000
#: The reasons of deliveries: what a message has waited for.
_LIMITS: Final = ("concurrency", "rate", "parent_concurrency", "parent_rate", "turn")
#: Events of attempts that failed, and of those that closed.
_FAILED: Final = "event in ('nacked', 'timed_out', 'dead') and attempt > 0"
_CLOSED: Final = (
    "event in ('nacked', 'timed_out', 'dead', 'acked', 'released', 'discarded') and attempt > 0"
)
_TASK: Final = "coalesce(task, 'unknown')"
_LIMITED: Final = f"""
    select queue, reason as `limit`, {bin_of("us")} as bin, count(1) as waits, sum(us) as us
    from (
        select queue, reason, {microseconds("wait_ms")} as us
        from {{events}}
        where event = 'delivered' and reason in {_LIMITS} and wait_ms is not null
    )
    group by queue, reason, {bin_of("us")}
"""
#: By task and error: class, else reason, else event.
_FAILURES: Final = f"""
    select {_TASK} as task, coalesce(error_class, reason, event) as error,
        count(1) as failed, sum({microseconds("run_ms")}) as run_us
    from {{events}}
    where {_FAILED}
    group by {_TASK}, coalesce(error_class, reason, event)
    order by failed desc, task, error
    limit {_MAX_BINS}
"""


def overview(events: DataFrame) -> tuple[int, int, int] | None:
    """Number of events, and first and last ts in µs; None without any."""
    from pyspark.sql import functions as F

    row = events.agg(
        F.expr("count(1) as rows"),
        F.expr("unix_micros(min(ts)) as first_us"),
        F.expr("unix_micros(max(ts)) as last_us"),
    ).collect()[0]
    return (row.rows, row.first_us, row.last_us) if row.rows else None


def count_events(events: DataFrame, sums: Sums) -> None:
    """Add events to the tables that are of events."""
    of_ts = bucket("ts", sums.width_s)
    queries = {
        "flow": _flow(of_ts),
        "durations": _durations(of_ts),
        "tasks": _of_attempts("task"),
        "failures": _FAILURES,
        "workers": _of_attempts("worker", "task"),
        "limits": _LIMITED,
    }
    for name, key, values in rows_of(queries, events=events):
        sums.add(name, [(key, values)])


def _flow(of_ts: str) -> str:
    """busy_us: the time that attempts ran which closed."""
    return f"""
        select queue, {of_ts} as bucket, {count_if("event = 'acked'")} as acked,
            {count_if(f"{FINAL_END} and event <> 'acked'")} as ended,
            {count_if("event = 'dead'")} as dead, {count_if(_FAILED)} as failed,
            sum({microseconds("run_ms")}) as busy_us
        from {{events}}
        group by queue, {of_ts}
    """


def _durations(of_ts: str) -> str:
    """The times that attempts waited and ran which closed."""
    return f"""
        select pair.kind, bucket, {bin_of("pair.us")} as bin, count(1) as attempts,
            sum(pair.us) as us
        from (
            select {of_ts} as bucket, explode(array(
                named_struct('kind', 'wait', 'us', {microseconds("wait_ms")}),
                named_struct('kind', 'run', 'us', {microseconds("run_ms")})
            )) as pair
            from {{events}}
            where {_CLOSED}
        )
        where pair.us is not null
        group by pair.kind, bucket, {bin_of("pair.us")}
    """


def _of_attempts(*keys: str) -> str:
    """By some columns, and bins of the time that attempts ran which closed; those with most attempts."""
    names = ", ".join(keys)
    known = "and worker <> ''" if "worker" in keys else ""
    return f"""
        select {names}, {bin_of("us")} as bin, count(1) as attempts, {count_if("fell")} as failed,
            sum(us) as run_us, sum(if(fell, us, null)) as failed_us
        from (
            select worker, {_TASK} as task, {microseconds("run_ms")} as us, {_FAILED} as fell
            from {{events}}
            where {_CLOSED} {known}
        )
        group by {names}, {bin_of("us")}
        order by attempts desc, {names}, bin
        limit {_MAX_BINS}
    """
