"""Charts over time: throughput, backlog, durations, load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qworker.pipeline.report.figures import (
    LOG_SECONDS,
    Document,
    Figure,
    axis_for,
    figure,
    line,
    queue_colours,
    ranked,
    summed,
)
from qworker.pipeline.report.text import span
from qworker.pipeline.report.theme import SERIES_COLOURS

__all__ = ["backlog", "load", "oldest", "run", "throughput", "wait"]

_UNITS: Final = (
    (172_800, 86_400, "days"),
    (7200, 3600, "hours"),
    (120, 60, "minutes"),
    (0, 1, "seconds"),
)


def throughput(document: Document) -> Figure:
    """Messages per second in and out, and failed attempts."""
    width_s = document["bucket_s"]
    lines = (
        ("in", "sent", "@in", 2.5),
        ("acked", "acked", "@out", 2.5),
        ("failed", "failed attempts", "@failed", 1.5),
        ("dead", "dead", "@dead", 1.5),
        ("ended", "expired, cancelled, discarded, purged", "@other", 1.5),
    )
    rates = {
        key: [round(value / width_s, 4) for value in summed(document, key)] for key, *_ in lines
    }
    axis = axis_for(
        [values for key, values in rates.items() if key in ("in", "acked") or any(values)]
    )
    is_log = axis.get("type") == "log"
    traces = []
    for key, name, colour, width in lines:
        values = rates[key]
        if key not in ("in", "acked") and not any(values):
            continue
        # A log scale has no 0: a gap, and a mark on what stands alone between two.
        shown = [value or None for value in values] if is_log else values
        trace = line(document["t_ms"], name, shown, colour, width, "%{y:,.3~f}/s")
        if is_log:
            trace["mode"] = "lines+markers"
            trace["marker"] = {**trace["marker"], "size": 4}
        elif key == "in":
            trace |= {"fill": "tozeroy", "fillcolor": f"{colour}/12"}
        traces.append(trace)
    return figure(traces, y={"title": "messages/s", **axis})


def backlog(document: Document) -> Figure:
    """Messages due and not ended, by queue, on top of each other."""
    traces = [
        {
            **line(document["t_ms"], queue, values, colour, 1, "%{y:,}"),
            "stackgroup": "backlog",
            "fillcolor": f"{colour}/55",
        }
        for queue, values, colour in _by_queue(document, "backlog", sum)
    ]
    return figure(traces, y={"title": "messages", "rangemode": "tozero"})


def oldest(document: Document) -> Figure:
    """Age of the oldest message that is due and not ended, by queue."""
    lines = _by_queue(document, "oldest_s", max)
    most = max((max(values, default=0) for _, values, _ in lines), default=0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if most >= least)
    traces = [
        {
            **line(
                document["t_ms"], queue, [value / size for value in values], colour, 2, "%{text}"
            ),
            "text": [span(value) for value in values],
        }
        for queue, values, colour in lines
    ]
    return figure(traces, y={"title": unit, "rangemode": "tozero"})


def wait(document: Document) -> Figure:
    """Percentiles of waiting over time."""
    return _percentiles(document, "wait", "@wait")


def run(document: Document) -> Figure:
    """Percentiles of running over time."""
    return _percentiles(document, "run", "@run")


def load(document: Document) -> Figure:
    """Busy handlers, by queue, on top of each other."""
    width_s = document["bucket_s"]
    traces = [
        {
            **line(
                document["t_ms"],
                queue,
                [round(v / width_s, 4) for v in values],
                colour,
                1,
                "%{y:.3~f} busy",
            ),
            "stackgroup": "load",
            "fillcolor": f"{colour}/55",
        }
        for queue, values, colour in _by_queue(document, "busy_s", sum)
    ]
    return figure(traces, y={"title": "busy handlers", "rangemode": "tozero"})


def _percentiles(document: Document, kind: str, colour: str) -> Figure:
    values = document["percentiles_ms"][kind]
    traces = [
        {
            **line(
                document["t_ms"],
                name,
                _seconds(values[name]),
                f"{colour}/{opaque}",
                width,
                "%{text}",
            ),
            "text": [None if value is None else span(value / 1000) for value in values[name]],
            "connectgaps": True,
            "line": {"color": f"{colour}/{opaque}", "width": width, "dash": dash},
        }
        for name, opaque, width, dash in (
            ("p99", 55, 1.5, "dot"),
            ("p95", 80, 2, "solid"),
            ("p50", 100, 3, "solid"),
        )
    ]
    return figure(traces, y=LOG_SECONDS)


def _seconds(values_ms: Sequence[float | None]) -> list[float | None]:
    """Ms as seconds; a log scale has no 0."""
    return [None if value is None else max(value, 0.1) / 1000 for value in values_ms]


def _by_queue(
    document: Document, key: str, gather: Callable[[Sequence[float]], float]
) -> list[tuple[str, list[float], str]]:
    """Series of the queues with most in them, each with its colour; the others as one. The largest comes first."""
    queues, names, colours = document["queues"], ranked(document, key), queue_colours(document)
    shown = [name for name in names[:SERIES_COLOURS] if any(queues[name][key])] or names[:1]
    series = [(name, list(queues[name][key]), colours[name]) for name in shown]
    rest = names[SERIES_COLOURS:]
    if rest:
        values = [
            gather(values) for values in zip(*(queues[name][key] for name in rest), strict=True)
        ]
        series.append((f"{len(rest)} others", values, "@other"))
    return series
