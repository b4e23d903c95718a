"""The charts of a report: its document as figures of Plotly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qworker.pipeline.report import bars, trends
from qworker.pipeline.report.figures import Document, Figure

__all__ = ["CHARTS", "make_figures"]

#: Name of a chart → the function that makes it.
CHARTS: Final[dict[str, Callable[[Document], Figure]]] = {
    chart.__name__: chart
    for chart in (
        trends.throughput,
        trends.backlog,
        trends.oldest,
        trends.wait,
        trends.run,
        bars.wait_histogram,
        bars.run_histogram,
        bars.attempts,
        bars.retry_cost,
        bars.failures,
        bars.dead,
        bars.runs,
        bars.groups,
        bars.sla,
        trends.load,
        bars.workers,
    )
}


def make_figures(document: Document) -> dict[str, Figure]:
    """Make the figures of a document that has rows: name of the chart → figure."""
    return {name: make(document) for name, make in CHARTS.items()}
