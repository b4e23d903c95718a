"""Parts of charts: figures of Plotly as plain dictionaries, less what the template of the theme sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qworker.pipeline.report.theme import QUEUE_COLOURS

__all__ = [
    "LOG_SECONDS",
    "Document",
    "Figure",
    "axis_for",
    "figure",
    "horizontal",
    "horizontal_bars",
    "label",
    "line",
    "queue_colours",
    "ranked",
    "summed",
    "vertical_bars",
]

Figure = dict[str, Any]
Document = Mapping[str, Any]

#: A peak of more than this many times the 90th percentile is a burst.
_BURST: Final = 8
#: Marks of a log scale of seconds.
_MARKS: Final = {
    0.0001: "0.1 ms", 0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s", 60: "1 min",
    600: "10 min", 3600: "1 h", 36_000: "10 h", 259_200: "3 d", 2_592_000: "30 d",
}  # fmt: skip
LOG_SECONDS: Final = {"type": "log", "tickvals": list(_MARKS), "ticktext": list(_MARKS.values())}


def figure(traces: list[Figure], *, y: Mapping[str, Any]) -> Figure:
    """Make a figure over time; `y`: settings of its other axis, the title as text."""
    title = {"title": {"text": y["title"], "standoff": 8}} if "title" in y else {}
    return {
        "data": traces,
        "layout": {
            "height": 280,
            "xaxis": {"type": "date", "showgrid": False, "tickangle": 0},
            "yaxis": {**y, **title},
        },
    }


def axis_for(series: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A log scale if a burst would flatten everything else."""
    values = sorted(value for values in series for value in values if value > 0)
    if values and values[-1] > _BURST * values[9 * len(values) // 10]:
        return {"type": "log", "dtick": 1}
    return {"rangemode": "tozero"}


def label(name: str) -> str:
    """Write a name as Plotly shows it unchanged: it reads `<b>` as markup, and the page `@in` as a colour."""
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"&#64;{escaped[1:]}" if escaped.startswith("@") else escaped


def line(
    t_ms: Sequence[int], name: str, values: Sequence[Any], colour: str, width: float, hover: str
) -> Figure:
    """Make a line over time."""
    return {
        "type": "scatter",
        "mode": "lines" if len(values) > 1 else "markers",
        "name": label(name),
        "x": list(t_ms),
        "y": list(values),
        "line": {"color": colour, "width": width},
        "marker": {"color": colour},
        "hovertemplate": hover,
    }


def vertical_bars(
    names: Sequence[str], values: Sequence[float], name: str, colour: str, hover: str
) -> Figure:
    """Make vertical bars."""
    return {
        "type": "bar",
        "name": label(name),
        "x": [label(each) for each in names],
        "y": list(values),
        "marker": {"color": colour},
        "hovertemplate": hover,
    }


def horizontal_bars(
    names: Sequence[str], values: Sequence[float], name: str, colour: str, hover: str
) -> Figure:
    """Make bars from the left."""
    return {
        **vertical_bars(names, values, name, colour, hover),
        "orientation": "h",
        "x": list(values),
        "y": [label(each) for each in names],
    }


def horizontal(traces: list[Figure], title: str) -> Figure:
    """Stack bars from the left, one row for each name; the figure grows with them."""
    rows = len(traces[0]["y"]) if traces else 1
    return {
        "data": traces,
        "layout": {
            "height": 110 + 34 * max(2, rows),
            "barmode": "stack",
            "hovermode": "y unified",
            "bargap": 0.35,
            "xaxis": {"title": {"text": title}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "showgrid": False},
        },
    }


def queue_colours(document: Document) -> dict[str, str]:
    """A queue has the same colour in all charts, and one of its own if it is among those with most messages."""
    return {
        queue: f"@c{number}" if number <= QUEUE_COLOURS else "@other"
        for number, queue in enumerate(ranked(document, "in"), 1)
    }


def ranked(document: Document, key: str) -> list[str]:
    """The queues, the one with most of a series first."""
    queues = document["queues"]
    return sorted(queues, key=lambda queue: -sum(queues[queue][key]))


def summed(document: Document, key: str) -> list[float]:
    """A series added up over all queues."""
    return [
        sum(values)
        for values in zip(*(queue[key] for queue in document["queues"].values()), strict=True)
    ]
