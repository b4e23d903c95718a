"""The parts of charts: figures of Plotly with axes, lines and bars in our look, each a plain dictionary.

Colours are names with an `@` before them, `@in` or `@c3/20` (20 % opaque): the page puts the colours of its theme in
their place, so that one figure serves light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = [
    "COLOURS",
    "LOG_SECONDS",
    "Document",
    "Figure",
    "axis_for",
    "bar",
    "figure",
    "line",
    "lying",
    "lying_bar",
    "queue_colours",
]

Figure = dict[str, Any]
Document = Mapping[str, Any]

#: Colours for things without a meaning of their own; what comes after the last is gathered as `other`.
COLOURS: Final = 7

#: A peak so many times the 90th percentile is a burst.
_BURST: Final = 8
#: Marks of a log scale of seconds.
_MARKS: Final = {
    0.0001: "0.1 ms", 0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s", 60: "1 min",
    600: "10 min", 3600: "1 h", 36_000: "10 h", 259_200: "3 d", 2_592_000: "30 d",
}  # fmt: skip
LOG_SECONDS: Final = {"type": "log", "tickvals": list(_MARKS), "ticktext": list(_MARKS.values())}
_AXIS: Final = {
    "gridcolor": "@grid",
    "linecolor": "@grid",
    "zerolinecolor": "@grid",
    "tickcolor": "@grid",
    "automargin": True,
}


def figure(traces: list[Figure], *, y: Mapping[str, Any]) -> Figure:
    """Make a figure over time; `y`: settings of its other axis, the title as text."""
    title = {"title": {"text": y["title"], "standoff": 8}} if "title" in y else {}
    return {
        "data": traces,
        "layout": {
            "height": 280,
            "margin": {"l": 8, "r": 14, "t": 8, "b": 8, "pad": 4},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": "@text", "size": 12},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@grid", "font": {"color": "@text"}},
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "x": 0,
                "y": 1.02,
                "xanchor": "left",
                "yanchor": "bottom",
            },
            "xaxis": {**_AXIS, "type": "date", "showgrid": False},
            "yaxis": {**_AXIS, **y, **title},
        },
    }


def axis_for(series: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A log scale where one burst would press everything else to the ground."""
    values = sorted(value for each in series for value in each if value > 0)
    if values and values[-1] > _BURST * values[9 * len(values) // 10]:
        return {"type": "log", "dtick": 1}
    return {"rangemode": "tozero"}


def line(
    t_ms: Sequence[int], name: str, values: Sequence[Any], colour: str, width: float, hover: str
) -> Figure:
    """Make a line over time."""
    return {
        "type": "scatter",
        "mode": "lines" if len(values) > 1 else "markers",
        "name": name,
        "x": list(t_ms),
        "y": list(values),
        "line": {"color": colour, "width": width},
        "marker": {"color": colour},
        "hovertemplate": hover,
    }


def bar(
    names: Sequence[str], values: Sequence[float], name: str, colour: str, hover: str
) -> Figure:
    """Make standing bars."""
    return {
        "type": "bar",
        "name": name,
        "x": list(names),
        "y": list(values),
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": hover,
    }


def lying_bar(
    names: Sequence[str], values: Sequence[float], name: str, colour: str, hover: str
) -> Figure:
    """Make bars from the left."""
    return {
        **bar(names, values, name, colour, hover),
        "orientation": "h",
        "x": list(values),
        "y": list(names),
    }


def lying(traces: list[Figure], title: str) -> Figure:
    """Stack bars from the left, one row for each name; the figure grows with them."""
    found = figure(traces, y={})
    rows = len(traces[0]["y"]) if traces else 1
    found["layout"] |= {"barmode": "stack", "hovermode": "y unified", "bargap": 0.35}
    found["layout"]["height"] = 110 + 34 * max(2, rows)
    found["layout"]["xaxis"] = {**_AXIS, "title": {"text": title}, "rangemode": "tozero"}
    found["layout"]["yaxis"] = {**_AXIS, "type": "category", "automargin": True, "showgrid": False}
    return found


def queue_colours(document: Document) -> dict[str, str]:
    """A queue has the same colour in all charts."""
    return {queue: f"@c{at % COLOURS + 1}" for at, queue in enumerate(sorted(document["queues"]))}
