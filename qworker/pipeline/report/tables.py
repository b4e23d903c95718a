"""The tables of a report's document, made of its sums: durations, tasks, failures, limits, workers, targets, gaps."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qworker.pipeline.jobs.holes import Hole
from qworker.pipeline.report.buckets import Buckets
from qworker.pipeline.report.scope import Scope, in_ms
from qworker.pipeline.report.sums import BINS_PER_DECADE, Sums, percentiles

__all__ = [
    "attempts",
    "dead_letter",
    "durations",
    "failures",
    "gaps",
    "limits",
    "sla",
    "tasks",
    "workers",
]

_MOST: Final = 500
_MAX_GAPS: Final = 100
_SHOWN_WORKERS: Final = 30
#: Bars of the histograms between 1 ms and 10 ms, 10 ms and 100 ms …; the first one is of all below 0.1 ms too.
_BARS_PER_DECADE: Final = 5
_FIRST_BAR: Final = -_BARS_PER_DECADE


def durations(sums: Sums, buckets: Buckets) -> dict[str, Any]:
    """Percentiles by bucket, and histograms, of the times that attempts waited and ran."""
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


def attempts(sums: Sums) -> list[dict[str, int]]:
    """Messages by the number of their attempts: those that ended, and those that died."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: {"ended": 0, "dead": 0})
    for (attempts, state), (messages,) in sums["attempts"].items():
        counts[attempts][state] += messages
    return [{"attempts": attempts, **counts[attempts]} for attempts in sorted(counts)]


def tasks(sums: Sums) -> dict[str, Any]:
    """Tasks, the one that ran longest first; and the cost of failed attempts."""
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


def failures(sums: Sums) -> list[dict[str, Any]]:
    """Failed attempts by task and error, most first."""
    rows = sorted(sums["failures"].items(), key=lambda row: (-row[1][0], row[0]))
    return [
        {"task": task, "error": error, "failed": failed, "run_ms": round(run_us / 1000, 3)}
        for (task, error), (failed, run_us) in rows[:_MOST]
    ]


def limits(sums: Sums) -> list[dict[str, Any]]:
    """Messages that waited for a limit, by queue and limit; those that waited longest in all first."""
    rows = []
    for (queue, limit), bins in sums.by("limits", "queue", "limit"):
        waits, us = (sum(each) for each in zip(*bins.values(), strict=True))
        waited = {place: (row[0], row[1]) for place, row in bins.items()}
        named = {"queue": queue, "limit": limit, "waits": waits, "wait_s": round(us / 1e6, 3)}
        rows.append((us, {**named, **percentiles(waited)}))
    rows.sort(key=lambda each: (-each[0], each[1]["queue"], each[1]["limit"]))
    return [row for _, row in rows[:_MOST]]


def workers(
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


def dead_letter(row: Any, namespace: str) -> dict[str, Any]:
    """A group of dead letters, with the command that redrives them."""
    command = [
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
        command += ["--error-class", row.error]
    return {
        "queue": row.queue,
        "reason": row.reason,
        "error_class": row.error,
        "dead": row.dead,
        "first_ms": in_ms(row.first_ts),
        "last_ms": in_ms(row.last_ts),
        "samples": list(row.samples),
        "redrive": shlex.join(map(_printable, [*command, "--dry-run"])),
    }


def _printable(word: str) -> str:
    """Escape control characters, which a terminal would obey when you paste the command.

    The command finds no dead letter then. Quotes and blanks in names of workers and senders are for `shlex.join`.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in word)


def sla(sums: Sums, scope: Scope) -> list[dict[str, Any]]:
    """By queue, the messages that were done within the target."""
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


def gaps(found: Sequence[Hole], scope: Scope) -> list[dict[str, Any]]:
    """The holes of the record that the window reaches."""
    holes = [
        {
            "queue": hole.queue,
            "after": hole.after,
            "missing": hole.missing,
            "from_ms": in_ms(hole.since),
            "until_ms": in_ms(hole.until),
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
    return holes[:_MAX_GAPS]
