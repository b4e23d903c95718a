"""Tables of messages that Spark counts for a report: arrivals, backlog, attempts, targets; and dead letters.

Each is SQL over lifecycles, whose rows are those of a table of `qworker.pipeline.report.sums`, few for any number of
messages. `bucket` is a number of `columns.bucket`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.holes import utc
from qworker.pipeline.jobs.local import kept
from qworker.pipeline.jobs.queries import query
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
#: By attempts (1 to 10, more counts as 10) and state, of messages that ended or died after a delivery.
_ATTEMPTS: Final = """
    select part, least(attempts, 10) as attempts, state, count(1) as messages
    from {messages}
    where state <> 'open' and attempts > 0
    group by part, least(attempts, 10), state
"""
_DEAD_LETTERS: Final = f"""
    select queue, reason, error, count(1) as dead, min(last_ts) as first_ts, max(last_ts) as last_ts,
        array_sort(collect_list(if(place <= :samples, message_id, null))) as samples
    from (
        select *, row_number() over (
            partition by queue, reason, error order by last_ts desc, message_id
        ) as place
        from (
            select queue, coalesce(last_reason, 'unknown') as reason,
                coalesce(last_error, '') as error, message_id, last_ts
            from {{messages}}
            where state = 'dead'
        )
    )
    group by queue, reason, error
    order by dead desc, queue, reason, error
    limit {_MOST}
"""
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
        F.expr("max(last_ts) as newest"), F.expr(f"max({IS_RUN}) as has_runs")
    ).collect()[0]
    return utc(row.newest), bool(row.has_runs)


def count_messages(lifecycles: DataFrame, targets: Targets, *sums: Sums) -> None:
    """Add lifecycles to the tables that are of messages: of `sums` to that which their column `part` counts, from 0."""
    width_s = sums[0].width_s
    sla, args = _sla(targets)
    queries = {
        "arrivals": _arrivals(width_s),
        "backlog": _backlog(width_s),
        "attempts": _ATTEMPTS,
        "sla": sla,
    }
    for name, (part, *key), values in rows_of(queries, "part", args=args, messages=lifecycles):
        sums[part].add(name, [(tuple(key), values)])


def _arrivals(width_s: int) -> str:
    """By the bucket in which a message was sent."""
    sent = bucket("sent_ts", width_s)
    return f"""
        select part, queue, {sent} as bucket, count(1) as messages
        from {{messages}}
        where sent_ts is not null
        group by part, queue, {sent}
    """


def _backlog(width_s: int) -> str:
    """oldest_us: the earliest time due. At most one row per queue and pair of buckets."""
    return f"""
        select part, queue, begun, until, count(1) as messages, unix_micros(min(due_ts)) as oldest_us
        from (
            select *, {bucket("due_ts", width_s)} as begun,
                if(state <> 'open', {bucket("last_ts", width_s)}, null) as until
            from {{messages}}
            where due_ts is not null
        )
        where until is null or until > begun
        group by part, queue, begun, until
    """


def _sla(targets: Targets) -> tuple[str, dict[str, Any]]:
    """From due to the end. done counts acked and dead messages; only an acked one can be within its target."""
    by_queue, others = targets
    args: dict[str, Any] = {"target": float(others)}
    cases = ""
    for number, (queue, target_ms) in enumerate(by_queue.items()):
        args |= {f"queue{number}": queue, f"target{number}": float(target_ms)}
        cases += f"when queue = :queue{number} then :target{number} "
    target = f"case {cases}else :target end" if cases else ":target"
    return (
        f"""
        select part, queue, if(acked, {bin_of("took_us")}, null) as bin, count(1) as done,
            {count_if("acked and took_us <= target * 1000")} as within,
            {count_if("not acked")} as failed, sum(if(acked, took_us, null)) as took_us
        from (
            select *, unix_micros(last_ts) - unix_micros(due_ts) as took_us,
                coalesce(end_event = 'acked', false) as acked, {target} as target
            from {{messages}}
            where end_event = 'acked' or state = 'dead'
        )
        group by part, queue, if(acked, {bin_of("took_us")}, null)
    """,
        args,
    )


def dead_letters(lifecycles: DataFrame, samples: int = 3) -> list[Row]:
    """By queue, reason and error class of messages dead at the end: dead, first_ts, last_ts, samples (newest ids)."""
    return query(_DEAD_LETTERS, {"samples": samples}, messages=lifecycles).collect()
