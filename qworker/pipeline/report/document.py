"""The document: all numbers of a report, as `--json` writes them and the page draws them.

Series have one value per bucket, from that of the first event to that of the last. Times are ms since 1970.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.lifecycle import lifecycles
from qworker.pipeline.jobs.record import Record, examine
from qworker.pipeline.report import series
from qworker.pipeline.report.buckets import Buckets, backlogs, flows, no_flow, sent
from qworker.pipeline.report.forecast import METHOD, forecast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.source.offsets import Offsets

__all__ = ["DEFAULT_TARGET_MS", "Scope", "make_document"]

DEFAULT_TARGET_MS: Final = 10_000.0
_MOST_GAPS: Final = 100
_SHOWN_WORKERS: Final = 30


@dataclass(frozen=True, slots=True)
class Scope:
    """What a report covers. `source`: where its events come from, in words. `targets_ms`: queue → target of its SLA."""

    namespace: str
    source: str
    since: datetime | None = None
    until: datetime | None = None
    targets_ms: Mapping[str, float] = field(default_factory=dict)
    default_target_ms: float = DEFAULT_TARGET_MS


def make_document(
    events: DataFrame,
    scope: Scope,
    *,
    ends: Offsets | None = None,
    earlier: frozenset[str] = frozenset(),
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Aggregate events (columns of `journal`) into the document of a report.

    `ends`: the offsets of the archive among the events; `earlier`: queues of which it has earlier events, left out.
    """
    from pyspark.sql import functions as F

    on_step("reading")
    record = examine(events, ends, earlier)
    whole = record.events.where("event not in ('gap', 'mode')")
    if scope.since is not None:
        whole = whole.where(F.col("ts") >= F.lit(scope.since))
    if scope.until is not None:
        whole = whole.where(F.col("ts") < F.lit(scope.until))
    seen = series.overview(whole)
    document: dict[str, Any] = {
        "namespace": scope.namespace,
        "source": scope.source,
        "generated_ms": _ms(datetime.now(UTC)),
        "window": {"since_ms": _ms(scope.since), "until_ms": _ms(scope.until)},
        "data": {
            "rows": seen["rows"],
            "first_ms": _ms(seen["first"]),
            "last_ms": _ms(seen["last"]),
        },
    }
    if not seen["rows"]:
        return document
    buckets = Buckets.over(seen["first"].timestamp(), seen["last"].timestamp())
    messages = lifecycles(whole).persist()
    try:
        on_step("messages")
        flow = flows(series.flow(whole, buckets.width_s), buckets)
        arrived = sent(series.arrivals(messages, buckets.width_s), buckets)
        waiting = backlogs(
            series.backlog_intervals(messages, buckets.width_s, buckets.first, buckets.last),
            buckets,
        )
        queues = sorted({*flow, *arrived, *waiting})
        on_step("durations")
        document |= {
            "bucket_s": buckets.width_s,
            "t_ms": buckets.starts_ms(),
            "queues": {
                queue: {
                    "in": arrived.get(queue, buckets.zeros()),
                    **flow.get(queue, no_flow(buckets)),
                    **waiting.get(queue, {"backlog": buckets.zeros(), "oldest_s": buckets.zeros()}),
                }
                for queue in queues
            },
            **_durations(whole, buckets),
        }
        on_step("tasks")
        document |= {
            "attempts": _attempts(series.attempt_counts(messages)),
            **_tasks(series.tasks(whole)),
            "failures": [row.asDict() for row in series.failures(whole)],
        }
        document["workers"] = _workers(series.workers(whole), document["tasks"], buckets)
        on_step("dead letters and targets")
        document["dead"] = [
            _dead_letter(row, scope.namespace) for row in series.dead_letters(messages)
        ]
        document["sla"] = [
            _sla(row)
            for row in series.sla(messages, dict(scope.targets_ms), scope.default_target_ms)
        ]
        on_step("gaps")
        document["gaps"] = _gaps(record, scope)
    finally:
        messages.unpersist()
    document["forecast"] = {"method": METHOD, "queues": _forecasts(document)}
    document["totals"] = _totals(document)
    return document


def _durations(events: DataFrame, buckets: Buckets) -> dict[str, Any]:
    percentiles: dict[str, dict[str, Any]] = {
        kind: {name: [None] * len(buckets) for name in ("p50", "p95", "p99")}
        for kind in ("wait", "run")
    }
    for row in series.rates(events, buckets.width_s):
        for kind in ("wait", "run"):
            named = _percentiles(row[f"{kind}_ms_p"])
            if row.bucket is None:
                percentiles[kind]["all"] = named
                continue
            index = buckets.index(row.bucket)
            for name in ("p50", "p95", "p99"):
                if index is not None:
                    percentiles[kind][name][index] = named[f"{name}_ms"]
    bins: dict[str, dict[int, int]] = {"wait": {}, "run": {}}
    for row in series.durations(events):
        bins[row.kind][row.bin] = row["count"]
    return {
        "percentiles_ms": percentiles,
        "histograms": {kind: _histogram(counts) for kind, counts in bins.items()},
    }


def _histogram(counts: Mapping[int, int]) -> dict[str, list[Any]]:
    """Bars without gaps between them: from_ms of each, and its count."""
    if not counts:
        return {"from_ms": [], "count": []}
    bins = range(min(counts), max(counts) + 1)
    return {
        "from_ms": [float(f"{10 ** (number / series.BINS_PER_DECADE):.4g}") for number in bins],
        "count": [counts.get(number, 0) for number in bins],
    }


def _attempts(rows: Iterable[Any]) -> list[dict[str, int]]:
    counts: dict[int, dict[str, int]] = defaultdict(lambda: {"ended": 0, "dead": 0})
    for row in rows:
        counts[row.attempts][row.state] += row["count"]
    return [{"attempts": attempts, **counts[attempts]} for attempts in sorted(counts)]


def _tasks(rows: Sequence[Any]) -> dict[str, Any]:
    tasks = [
        {
            "task": row.task,
            "attempts": row.attempts,
            "failed": row.failed,
            "run_s": round(row.run_ms / 1000, 3),
            "failed_s": round(row.failed_ms / 1000, 3),
            **_percentiles(row.run_ms_p),
        }
        for row in rows
    ]
    run_s, failed_s = sum(task["run_s"] for task in tasks), sum(task["failed_s"] for task in tasks)
    return {
        "tasks": tasks,
        "retry_cost": {
            "attempts": sum(task["attempts"] for task in tasks),
            "failed": sum(task["failed"] for task in tasks),
            "run_s": round(run_s, 3),
            "failed_s": round(failed_s, 3),
            "share": round(failed_s / run_s, 4) if run_s else 0.0,
        },
    }


def _workers(
    rows: Iterable[Any], tasks: Sequence[Mapping[str, Any]], buckets: Buckets
) -> list[dict[str, Any]]:
    """The slowest first. `slowness`: its median run times over those of all workers at the same tasks."""
    usual = {task["task"]: task["p50_ms"] for task in tasks}
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        worker = sums[row.worker]
        worker["attempts"] += row.attempts
        worker["failed"] += row.failed
        worker["run_ms"] += row.run_ms
        if row.run_ms_p and usual.get(row.task):
            worker["own"] += row.attempts * row.run_ms_p[0]
            worker["usual"] += row.attempts * usual[row.task]
            worker["p95"] = max(worker["p95"], row.run_ms_p[1])
    span_s = len(buckets) * buckets.width_s
    table: list[dict[str, Any]] = [
        {
            "worker": name,
            "attempts": int(worker["attempts"]),
            "failed": int(worker["failed"]),
            "slowness": round(worker["own"] / worker["usual"], 3) if worker["usual"] else None,
            "run_s": round(worker["run_ms"] / 1000, 3),
            "slowest_p95_ms": round(worker["p95"], 3),
            "busy": round(worker["run_ms"] / 1000 / span_s, 4),
        }
        for name, worker in sums.items()
    ]
    return sorted(table, key=lambda row: (-(row["slowness"] or 0), row["worker"]))[:_SHOWN_WORKERS]


def _dead_letter(row: Any, namespace: str) -> dict[str, Any]:
    words = [
        "qworker",
        "--namespace",
        namespace,
        "dead",
        "redrive",
        row.queue,
        "--reason",
        row.reason,
    ]
    if row.error:
        words += ["--error-class", row.error]
    return {
        "queue": row.queue,
        "reason": row.reason,
        "error_class": row.error,
        "dead": row.dead,
        "first_ms": _ms(row.first_ts),
        "last_ms": _ms(row.last_ts),
        "samples": list(row.samples),
        "redrive": shlex.join(map(_printable, [*words, "--dry-run"])),
    }


def _printable(word: str) -> str:
    """Escape control characters, which a terminal would obey when you paste the command.

    The command finds no dead letter then. Quotes and blanks in names of workers and senders are for `shlex.join`.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in word)


def _sla(row: Any) -> dict[str, Any]:
    return {
        "queue": row.queue,
        "target_ms": row.target_ms,
        "done": row.done,
        "within": row.within,
        "failed": row.failed,
        "percent": round(100 * row.within / row.done, 3) if row.done else None,
        **_percentiles(row.took_ms_p),
    }


def _gaps(record: Record, scope: Scope) -> list[dict[str, Any]]:
    """The holes of the record that the window reaches."""
    holes = [
        {
            "queue": hole.queue,
            "after": hole.after,
            "missing": hole.missing,
            "from_ms": _ms(hole.since),
            "until_ms": _ms(hole.until),
            "why": hole.why,
        }
        for hole in record.holes
        if (scope.since is None or hole.until is None or hole.until > scope.since)
        and (
            scope.until is None
            or (begun := hole.since or hole.until) is None
            or begun < scope.until
        )
    ]
    return holes[:_MOST_GAPS]


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


def _percentiles(values: Sequence[float] | None) -> dict[str, float | None]:
    three = list(values) if values else [None, None, None]
    return {
        name: None if value is None else round(value, 3)
        for name, value in zip(("p50_ms", "p95_ms", "p99_ms"), three, strict=True)
    }


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
