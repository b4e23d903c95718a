"""Charts of bars: histograms of durations; attempts, failures and targets by task, queue and worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qworker.pipeline.report.figures import (
    LOG_SECONDS,
    Document,
    Figure,
    figure,
    horizontal,
    horizontal_bars,
    queue_colours,
    vertical_bars,
)
from qworker.pipeline.report.text import span
from qworker.pipeline.report.theme import SERIES_COLOURS

__all__ = [
    "attempts",
    "dead",
    "failures",
    "groups",
    "retry_cost",
    "run_histogram",
    "runs",
    "sla",
    "wait_histogram",
    "workers",
]

_BARS: Final = 12


def wait_histogram(document: Document) -> Figure:
    """How long attempts waited."""
    return _histogram(document["histograms"]["wait"], "@wait")


def run_histogram(document: Document) -> Figure:
    """How long attempts ran."""
    return _histogram(document["histograms"]["run"], "@run")


def attempts(document: Document) -> Figure:
    """Attempts per message, on a log scale: messages with many are rare, and the interesting ones."""
    rows = document["attempts"]
    labels = ["10 or more" if row["attempts"] == 10 else str(row["attempts"]) for row in rows]
    traces = [
        vertical_bars(labels, [row[state] for row in rows], name, colour, "%{y:,} messages")
        for state, name, colour in (("ended", "ended", "@out"), ("dead", "dead", "@dead"))
        if any(row[state] for row in rows)
    ]
    drawn = figure(traces, y={"title": "messages", "type": "log", "dtick": 1})
    drawn["layout"]["xaxis"] |= {"type": "category", "title": {"text": "attempts"}}
    drawn["layout"] |= {"barmode": "group", "hovermode": "x"}
    return drawn


def retry_cost(document: Document) -> Figure:
    """Handler time by task: of attempts that succeeded, and of those that failed."""
    rows = list(reversed(document["tasks"][:_BARS]))
    names = [row["task"] for row in rows]
    useful = [round(row["run_s"] - row["failed_s"], 3) for row in rows]
    return horizontal(
        [
            horizontal_bars(names, useful, "succeeded", "@run", "%{x:.3~s}s"),
            horizontal_bars(
                names, [row["failed_s"] for row in rows], "failed", "@failed", "%{x:.3~s}s"
            ),
        ],
        "handler seconds",
    )


def failures(document: Document) -> Figure:
    """Failed attempts by task and error."""
    by_error: dict[str, dict[str, int]] = {}
    by_task: dict[str, int] = {}
    for row in document["failures"]:
        by_task[row["task"]] = by_task.get(row["task"], 0) + row["failed"]
        errors = by_error.setdefault(row["error"], {})
        errors[row["task"]] = errors.get(row["task"], 0) + row["failed"]
    names = sorted(by_task, key=lambda task: by_task[task])[-_BARS:]
    traces = [
        horizontal_bars(
            names,
            values,
            error,
            f"@e{number}" if number <= SERIES_COLOURS else "@other",
            "%{x:,} failed",
        )
        for number, (error, values) in enumerate(_parts(by_error, names), 1)
    ]
    return horizontal(traces, "failed attempts")


def dead(document: Document) -> Figure:
    """Messages that are dead at the end, by reason and queue."""
    by_queue: dict[str, dict[str, int]] = {}
    by_reason: dict[str, int] = {}
    for row in document["dead"]:
        by_reason[row["reason"]] = by_reason.get(row["reason"], 0) + row["dead"]
        reasons = by_queue.setdefault(row["queue"], {})
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + row["dead"]
    names = sorted(by_reason, key=lambda reason: by_reason[reason])[-_BARS:]
    colours = queue_colours(document)
    traces = [
        horizontal_bars(names, values, queue, colours.get(queue, "@other"), "%{x:,} dead")
        for queue, values in _parts(by_queue, names)
    ]
    return horizontal(traces, "dead letters")


def _parts(
    counted: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the largest parts of some bars, as many as a chart names, and all others as one part."""
    largest = sorted(counted, key=lambda part: -sum(counted[part].values()))
    for part in largest[:SERIES_COLOURS]:
        yield part, [counted[part].get(name, 0) for name in names]
    if rest := largest[SERIES_COLOURS:]:
        values = [sum(counted[part].get(name, 0) for part in rest) for name in names]
        yield f"{len(rest)} others", values


def sla(document: Document) -> Figure:
    """The share of messages that ended well within the target of their queue."""
    rows = [row for row in reversed(document["sla"]) if row["percent"] is not None][-_BARS:]
    names = [row["queue"] for row in rows]
    traces = [
        {
            **horizontal_bars(
                names, [row["percent"] for row in rows], "within", "@out", "%{x:.2f} %"
            ),
            "text": [f"{row['percent']:.4g} %" for row in rows],
            "textposition": "inside",
            "insidetextanchor": "start",
            "textfont": {"color": "@paper"},
            "showlegend": False,
        },
        {
            **horizontal_bars(
                names,
                [round(100 - row["percent"], 3) for row in rows],
                "late or dead",
                "@dead/35",
                "%{x:.2f} %",
            ),
            "showlegend": False,
        },
    ]
    drawn = horizontal(traces, "% within target")
    drawn["layout"]["xaxis"] |= {"range": [0, 100], "ticksuffix": " %"}
    return drawn


def workers(document: Document) -> Figure:
    """Run times of workers, compared to all workers at the same tasks."""
    rows = [row for row in document["workers"] if row["slowness"] is not None][:_BARS]
    rows.reverse()
    trace = horizontal_bars(
        [row["worker"] for row in rows],
        [row["slowness"] for row in rows],
        "against the others",
        "@run",
        "%{x:.2f} × the usual time",
    )
    drawn = horizontal([{**trace, "showlegend": False}], "× the usual time")
    drawn["layout"]["shapes"] = [
        {
            "type": "line",
            "x0": 1,
            "x1": 1,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": "@text", "width": 1, "dash": "dot"},
        }
    ]
    return drawn


def runs(document: Document) -> Figure:
    """Runs by workflow and state."""
    rows = document["runs"]["workflows"][:_BARS]
    return _by_state(
        rows,
        "task",
        {
            "completed": ("completed", "@out"),
            "open": ("open", "@in"),
            "dead": ("dead", "@dead"),
            "cancelled": ("cancelled", "@failed"),
            "otherwise": ("ended otherwise", "@other"),
        },
        "runs",
    )


def groups(document: Document) -> Figure:
    """Groups of calls by the queue of their callback and their outcome."""
    rows = document["groups"]["queues"][:_BARS]
    return _by_state(
        rows,
        "queue",
        {
            "ok": ("decided", "@out"),
            "open": ("open", "@in"),
            "failed": ("failed", "@dead"),
            "cancelled": ("cancelled", "@failed"),
            "otherwise": ("ended otherwise", "@other"),
        },
        "groups",
    )


def _by_state(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    states: Mapping[str, tuple[str, str]],
    noun: str,
) -> Figure:
    """Stacked bars: those with most at the top, without states that none has."""
    rows = [*reversed(rows)]
    traces = [
        horizontal_bars(
            [row[name] for row in rows],
            [row[state] for row in rows],
            words,
            colour,
            f"%{{x:,}} {words}",
        )
        for state, (words, colour) in states.items()
        if any(row[state] for row in rows)
    ]
    return horizontal(traces, noun)


def _histogram(counts: Mapping[str, Sequence[float]], colour: str) -> Figure:
    from_s = [edge / 1000 for edge in counts["from_ms"]]
    step = 10 ** (1 / 5)
    trace = {
        # The middle of a bar on the log scale, and its width there.
        "type": "bar",
        "x": [edge * step**0.5 for edge in from_s],
        "width": [edge * (step - 1) * 0.94 for edge in from_s],
        "y": list(counts["count"]),
        "text": [f"{span(edge)} to {span(edge * step)}" for edge in from_s],
        "textposition": "none",
        "marker": {"color": colour},
        "hovertemplate": "%{text}<br>%{y:,} attempts<extra></extra>",
        "showlegend": False,
    }
    drawn = figure([trace], y={"title": "attempts", "rangemode": "tozero"})
    drawn["layout"]["xaxis"] |= {**LOG_SECONDS, "showgrid": True}
    drawn["layout"] |= {"hovermode": "closest", "bargap": 0.04}
    return drawn
