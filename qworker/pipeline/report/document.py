"""The document: all numbers of a report, as `--json` writes them and the page draws them.

Series have one value per bucket, from that of the first event to that of the last. Times are ms since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.deleted import NOTHING_EARLIER, Earlier
from qworker.pipeline.jobs.holes import Hole
from qworker.pipeline.jobs.lifecycle import lifecycles
from qworker.pipeline.jobs.record import examine
from qworker.pipeline.report import event_counts, message_counts, runs_and_groups, tables
from qworker.pipeline.report.buckets import (
    Buckets,
    backlogs,
    bucket_width,
    carried_width,
    flows,
    no_flow,
    sent,
)
from qworker.pipeline.report.forecast import METHOD, forecast
from qworker.pipeline.report.scope import Scope, in_ms
from qworker.pipeline.report.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.source.offsets import Offsets

__all__ = ["Waiting", "draw", "make_document", "new_sums"]


def make_document(
    events: DataFrame,
    scope: Scope,
    *,
    ends: Offsets | None = None,
    earlier: Earlier = NOTHING_EARLIER,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Aggregate events (columns of `journal`) into the document of a report.

    `ends`: the offsets of the archive among the events; `earlier`: events of it that were left out.
    """
    from pyspark.sql import functions as F

    on_step("reading")
    record = examine(events, ends, earlier)
    whole = record.events.where("event not in ('gap', 'mode')")
    if scope.since is not None:
        whole = whole.where(F.col("ts") >= F.lit(scope.since))
    if scope.until is not None:
        whole = whole.where(F.col("ts") < F.lit(scope.until))
    sums = new_sums(whole)
    if sums is None:
        return draw(None, (), (), scope)
    on_step("durations and tasks")
    event_counts.count_events(whole, sums)
    on_step("messages")
    messages = message_counts.reported(lifecycles(whole))
    try:
        parted = messages.withColumn("part", F.lit(0))
        message_counts.count_messages(parted, scope.targets, sums)
        on_step("runs and groups of calls")
        runs: runs_and_groups.Waiting = []
        if message_counts.overview(messages)[1]:
            runs = runs_and_groups.count_runs(parted, whole, sums)
        longest = Waiting(runs, runs_and_groups.count_groups(whole, sums)[0])
        on_step("dead letters")
        dead = message_counts.dead_letters(messages)
    finally:
        messages.unpersist()
    return draw(sums, dead, record.holes, scope, longest)


def new_sums(events: DataFrame, known: Sums | None = None) -> Sums | None:
    """Make sums for events, with buckets as wide as their span and that of others needs; None without any events.

    Its table `overview` has these events alone.
    """
    seen = event_counts.overview(events)
    spans = [
        values for values in (seen, None if known is None else known["overview"].get(())) if values
    ]
    if not spans:
        return None
    first, last = min(span[1] for span in spans), max(span[2] for span in spans)
    sums = Sums(carried_width(bucket_width((last - first) / 1_000_000)))
    if seen is not None:
        sums.add("overview", [((), seen)])
    return sums


@dataclass(frozen=True, slots=True)
class Waiting:
    """The runs and groups of calls that have waited longest."""

    runs: Sequence[dict[str, Any]] = ()
    groups: Sequence[dict[str, Any]] = ()


_NONE: Final = Waiting()


def draw(
    sums: Sums | None,
    dead: Sequence[Any],
    holes: Sequence[Hole],
    scope: Scope,
    longest: Waiting = _NONE,
) -> dict[str, Any]:
    """Make the document of sums (None: there were no events), rows of `dead_letters`, and holes of the record."""
    rows, first_us, last_us = sums["overview"][()] if sums is not None else (0, None, None)
    document: dict[str, Any] = {
        "namespace": scope.namespace,
        "source": scope.source,
        "generated_ms": in_ms(datetime.now(UTC)),
        "window": {"since_ms": in_ms(scope.since), "until_ms": in_ms(scope.until)},
        "data": {
            "rows": rows,
            "first_ms": None if first_us is None else round(first_us / 1000),
            "last_ms": None if last_us is None else round(last_us / 1000),
        },
    }
    if sums is None:
        return document
    assert first_us is not None
    assert last_us is not None
    buckets = Buckets.over(first_us / 1_000_000, last_us / 1_000_000)
    sums = sums.wider(buckets.width_s).bounded()
    flow, arrived = flows(sums["flow"], buckets), sent(sums["arrivals"], buckets)
    waiting = backlogs(sums["backlog"], buckets)
    document |= {
        "bucket_s": buckets.width_s,
        "t_ms": buckets.starts_ms(),
        "queues": {
            queue: {
                "in": arrived.get(queue, buckets.zeros()),
                **flow.get(queue, no_flow(buckets)),
                **waiting.get(queue, {"backlog": buckets.zeros(), "oldest_s": buckets.zeros()}),
            }
            for queue in sorted({*flow, *arrived, *waiting})
        },
        **tables.durations(sums, buckets),
        "attempts": tables.attempts(sums),
        **tables.tasks(sums),
        "failures": tables.failures(sums),
        "limits": tables.limits(sums),
    }
    document["workers"] = tables.workers(sums, document["tasks"], buckets)
    document["dead"] = [tables.dead_letter(row, scope.namespace) for row in dead]
    until_ms = document["data"]["last_ms"]
    document["runs"] = runs_and_groups.runs_of(sums, longest.runs, until_ms)
    document["groups"] = runs_and_groups.groups_of(sums, longest.groups, until_ms)
    document["sla"] = tables.sla(sums, scope)
    document["gaps"] = tables.gaps(holes, scope)
    document["forecast"] = {"method": METHOD, "queues": _forecasts(document)}
    document["totals"] = _totals(document)
    return document


def _forecasts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        forecast(
            queue,
            arrivals=rows["in"],
            ended=[
                sum(ends) for ends in zip(rows["acked"], rows["ended"], rows["dead"], strict=True)
            ],
            busy_s=rows["busy_s"],
            backlog=rows["backlog"][-1],
            bucket_s=document["bucket_s"],
        ).document()
        for queue, rows in document["queues"].items()
    ]


def _totals(document: Mapping[str, Any]) -> dict[str, Any]:
    queues = document["queues"].values()

    def total(name: str) -> int:
        return sum(sum(queue[name]) for queue in queues)

    return {
        **{name: total(name) for name in ("in", "acked", "ended", "dead", "failed")},
        "backlog": sum(queue["backlog"][-1] for queue in queues),
        "oldest_s": max((queue["oldest_s"][-1] for queue in queues), default=0),
        "still_dead": sum(row["dead"] for row in document["dead"]),
    }
