"""The look of a report: its colours, light and dark, and the template that its charts share.

A chart names colours, `@in` or `@c3/20` (20 % opaque), and the page puts those of the chosen theme in their place: one
figure serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["COLOURS", "QUEUE_COLOURS", "SERIES_COLOURS", "TEMPLATE"]

#: Name → light and dark. Page and charts take every colour from here.
COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "page": ("#f4f5f7", "#0e1117"),
    "paper": ("#ffffff", "#171b24"),
    "ink": ("#171c26", "#eef1f6"),
    "text": ("#4a5364", "#a9b2c3"),
    "faint": ("#7b8496", "#7d8799"),
    "grid": ("#e6e9ef", "#282e3a"),
    "edge": ("#e3e6ec", "#252b37"),
    "accent": ("#2f6fde", "#6ea1ff"),
    "good": ("#0e8a6d", "#3fc6a0"),
    "bad": ("#c93838", "#ff7b7b"),
    "in": ("#2f6fde", "#6ea1ff"),
    "out": ("#12977a", "#3fc6a0"),
    "failed": ("#e08a12", "#f3b04f"),
    "dead": ("#d64545", "#ff7373"),
    "other": ("#98a1b3", "#7f8899"),
    "wait": ("#7a5cd0", "#a890f5"),
    "run": ("#1f8fb5", "#57c0e3"),
    "c1": ("#2f6fde", "#6ea1ff"),
    "c2": ("#12977a", "#3fc6a0"),
    "c3": ("#e08a12", "#f3b04f"),
    "c4": ("#8a5cd6", "#b794f6"),
    "c5": ("#d4477f", "#f285b0"),
    "c6": ("#6a8f1f", "#a8cc5c"),
    "c7": ("#a8673a", "#d39a6c"),
    "c8": ("#1a8fc4", "#5cc3f0"),
    "c9": ("#b8468f", "#e58ac4"),
    "c10": ("#4f7a5b", "#8fc09c"),
    "c11": ("#b59410", "#e3c94f"),
    "c12": ("#5b63b7", "#9aa2f2"),
    "e1": ("#b3362b", "#ff8a75"),
    "e2": ("#d9772b", "#f5ab66"),
    "e3": ("#8c2f5f", "#dd82b0"),
    "e4": ("#c9a227", "#ecd06a"),
    "e5": ("#6b4a8f", "#b296da"),
    "e6": ("#7a5230", "#c49a72"),
    "e7": ("#4a5a6e", "#97a9bf"),
}
#: Series of a chart at most; the rest share `other`. Errors have colours of their own, `e1` to `e7`.
SERIES_COLOURS: Final = 7
#: Queues with a colour, `c1` to `c12`: those with most messages; the rest share `other`.
QUEUE_COLOURS: Final = 12

_AXIS: Final = {
    "showgrid": True,
    "gridcolor": "@grid",
    "showline": True,
    "linecolor": "@grid",
    "zeroline": True,
    "zerolinecolor": "@grid",
    "ticks": "outside",
    "tickcolor": "@grid",
    "automargin": True,
}
#: Plotly's own kind of template: defaults for all figures.
TEMPLATE: Final[Mapping[str, Any]] = {
    "layout": {
        "margin": {"l": 8, "r": 14, "t": 8, "b": 8, "pad": 4},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "@text", "size": 12},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@grid", "font": {"color": "@text"}},
        "showlegend": False,  # The page writes it below the chart, where it may wrap.
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
    "data": {"bar": [{"marker": {"line": {"width": 0}}}]},
}
