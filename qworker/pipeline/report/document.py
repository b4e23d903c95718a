"""The document: all numbers of a report, as `--json` writes them and the page draws them.

Series have one value per bucket, from that of the first event to that of the last. Times are ms since 1970.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.lifecycle import lifecycles
from qworker.pipeline.jobs.record import Hole, examine
from qworker.pipeline.report import series
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
from qworker.pipeline.report.sums import BINS_PER_DECADE, Sums, percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.source.offsets import Offsets

__all__ = ["DEFAULT_TARGET_MS", "Scope", "draw", "make_document", "new_sums"]

DEFAULT_TARGET_MS: Final = 10_000.0
_MOST: Final = 500
_MOST_GAPS: Final = 100
_SHOWN_WORKERS: Final = 30
#: Bars of the histograms between 1 ms and 10 ms, 10 ms and 100 ms …; the first one is of all below 0.1 ms too.
_BARS_PER_DECADE: Final = 5
_FIRST_BAR: Final = -_BARS_PER_DECADE


@dataclass(frozen=True, slots=True)
class Scope:
    """What a report covers. `source`: where its events come from, in words. `targets_ms`: queue → target of its SLA."""

    namespace: str
    source: str
    since: datetime | None = None
    until: datetime | None = None
    targets_ms: Mapping[str, float] = field(default_factory=dict)
    default_target_ms: float = DEFAULT_TARGET_MS

    @property
    def targets(self) -> series.Targets:
        """Targets by queue, and of the others."""
        return dict(self.targets_ms), self.default_target_ms


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
    sums = new_sums(whole)
    if sums is None:
        return draw(None, (), (), scope)
    on_step("durations and tasks")
    series.count_events(whole, sums)
    on_step("messages")
    messages = series.reported(lifecycles(whole))
    try:
        series.count_messages(messages.withColumn("part", F.lit(0)), scope.targets, sums)
        on_step("dead letters")
        dead = series.dead_letters(messages)
    finally:
        messages.unpersist()
    return draw(sums, dead, record.holes, scope)


def new_sums(events: DataFrame, known: Sums | None = None) -> Sums | None:
    """Make sums for events, with buckets as wide as their span and that of others needs; None without any events.

    Its table `overview` has these events alone.
    """
    seen = series.overview(events)
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


def draw(
    sums: Sums | None, dead: Sequence[Any], holes: Sequence[Hole], scope: Scope
) -> dict[str, Any]:
    """Make the document of sums (None: there were no events), rows of `dead_letters`, and holes of the record."""
    rows, first_us, last_us = sums["overview"][()] if sums is not None else (0, None, None)
    document: dict[str, Any] = {
        "namespace": scope.namespace,
        "source": scope.source,
        "generated_ms": _ms(datetime.now(UTC)),
        "window": {"since_ms": _ms(scope.since), "until_ms": _ms(scope.until)},
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
        **_durations(sums, buckets),
        "attempts": _attempts(sums),
        **_tasks(sums),
        "failures": _failures(sums),
    }
    document["workers"] = _workers(sums, document["tasks"], buckets)
    document["dead"] = [_dead_letter(row, scope.namespace) for row in dead]
    document["sla"] = _sla(sums, scope)
    document["gaps"] = _gaps(holes, scope)
    document["forecast"] = {"method": METHOD, "queues": _forecasts(document)}
    document["totals"] = _totals(document)
    return document


def _durations(sums: Sums, buckets: Buckets) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    bars: dict[str, dict[int, int]] = {"wait": {}, "run": {}}
    bins: dict[str, dict[int, dict[int, tuple[int, int]]]] = {"wait": {}, "run": {}}
    for (kind, bucket, place), (attempts, us) in sums["durations"].items():
        bins[kind].setdefault(bucket, {})[place] = (attempts, us)
        bar = max(_FIRST_BAR, place * _BARS_PER_DECADE // BINS_PER_DECADE)
        bars[kind][bar] = bars[kind].get(bar, 0) + attempts
    for kind, by_bucket in bins.items():
        names = ("p50", "p95", "p99")
        found[kind] = {name: [None] * len(buckets) for name in names}
        total: dict[int, tuple[int, int]] = {}
        for bucket, counted in by_bucket.items():
            for place, (attempts, us) in counted.items():
                more, sum_us = total.get(place, (0, 0))
                total[place] = more + attempts, sum_us + us
            index = buckets.index(bucket)
            if index is not None:
                for name, value in percentiles(counted).items():
                    found[kind][name.removesuffix("_ms")][index] = value
        found[kind]["all"] = percentiles(total)
    return {
        "percentiles_ms": found,
        "histograms": {kind: _histogram(counts) for kind, counts in bars.items()},
    }


def _histogram(counts: Mapping[int, int]) -> dict[str, list[Any]]:
    """Bars without gaps between them: from_ms of each, and its count."""
    if not counts:
        return {"from_ms": [], "count": []}
    bins = range(min(counts), max(counts) + 1)
    return {
        "from_ms": [float(f"{10 ** (number / _BARS_PER_DECADE):.4g}") for number in bins],
        "count": [counts.get(number, 0) for number in bins],
    }


def _attempts(sums: Sums) -> list[dict[str, int]]:
    counts: dict[int, dict[str, int]] = defaultdict(lambda: {"ended": 0, "dead": 0})
    for (attempts, state), (messages,) in sums["attempts"].items():
        counts[attempts][state] += messages
    return [{"attempts": attempts, **counts[attempts]} for attempts in sorted(counts)]


def _tasks(sums: Sums) -> dict[str, Any]:
    """Tasks, the one that ran longest first; and what failed attempts cost."""
    found = []
    for (task,), bins in sums.by("tasks", "task"):
        attempts, failed, run_us, failed_us = (
            sum(each) for each in zip(*bins.values(), strict=True)
        )
        ran = {place: (row[0], row[2]) for place, row in bins.items() if place is not None}
        numbers = {"task": task, "attempts": attempts, "failed": failed}
        found.append(
            (run_us, failed_us, {**numbers, **_ran(run_us, failed_us), **percentiles(ran)})
        )
    found.sort(key=lambda each: (-each[0], each[2]["task"]))
    tasks = [row for _, _, row in found[:_MOST]]
    run_us, failed_us = sum(each[0] for each in found), sum(each[1] for each in found)
    return {
        "tasks": tasks,
        "retry_cost": {
            "attempts": sum(row["attempts"] for _, _, row in found),
            "failed": sum(row["failed"] for _, _, row in found),
            **_ran(run_us, failed_us),
            "share": round(failed_us / run_us, 4) if run_us else 0.0,
        },
    }


def _ran(run_us: int, failed_us: int) -> dict[str, float]:
    return {"run_s": round(run_us / 1_000_000, 3), "failed_s": round(failed_us / 1_000_000, 3)}


def _failures(sums: Sums) -> list[dict[str, Any]]:
    """Failed attempts by task and error, most first."""
    rows = sorted(sums["failures"].items(), key=lambda row: (-row[1][0], row[0]))
    return [
        {"task": task, "error": error, "failed": failed, "run_ms": round(run_us / 1000, 3)}
        for (task, error), (failed, run_us) in rows[:_MOST]
    ]


def _workers(
    sums: Sums, tasks: Sequence[Mapping[str, Any]], buckets: Buckets
) -> list[dict[str, Any]]:
    """The slowest first. `slowness`: its median run times over those of all workers at the same tasks."""
    usual = {task["task"]: task["p50_ms"] for task in tasks}
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (name, task), bins in sorted(sums.by("workers", "worker", "task")):
        attempts, failed, run_us = (sum(each) for each in zip(*bins.values(), strict=True))
        ran = percentiles(
            {place: (row[0], row[2]) for place, row in bins.items() if place is not None}
        )
        worker = found[name]
        worker["attempts"] += attempts
        worker["failed"] += failed
        worker["run_us"] += run_us
        if ran["p50_ms"] is not None and ran["p95_ms"] is not None and usual.get(task):
            worker["own"] += attempts * ran["p50_ms"]
            worker["usual"] += attempts * usual[task]
            worker["p95"] = max(worker["p95"], ran["p95_ms"])
    span_s = len(buckets) * buckets.width_s
    table: list[dict[str, Any]] = [
        {
            "worker": name,
            "attempts": int(worker["attempts"]),
            "failed": int(worker["failed"]),
            "slowness": round(worker["own"] / worker["usual"], 3) if worker["usual"] else None,
            "run_s": round(worker["run_us"] / 1_000_000, 3),
            "slowest_p95_ms": round(worker["p95"], 3),
            "busy": round(worker["run_us"] / 1_000_000 / span_s, 4),
        }
        for name, worker in found.items()
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


def _sla(sums: Sums, scope: Scope) -> list[dict[str, Any]]:
    table = []
    for (queue,), bins in sorted(sums.by("sla", "queue")):
        done, within, failed, _ = (sum(each) for each in zip(*bins.values(), strict=True))
        took = {place: (row[0], row[3]) for place, row in bins.items() if place is not None}
        table.append(
            {
                "queue": queue,
                "target_ms": scope.targets_ms.get(queue, scope.default_target_ms),
                "done": done,
                "within": within,
                "failed": failed,
                "percent": round(100 * within / done, 3) if done else None,
                **percentiles(took),
            }
        )
    return table


def _gaps(found: Sequence[Hole], scope: Scope) -> list[dict[str, Any]]:
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
        for hole in found
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


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
