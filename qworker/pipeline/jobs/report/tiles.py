"""The tiles at the head of the page: what one wants to know first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qworker.pipeline.jobs.report.text import count, decimal, percent, span, span_ms

__all__ = ["Tile", "tiles"]


class Tile(NamedTuple):
    """A number at the head of the page. `tone`: 'good', 'bad' or ''."""

    name: str
    value: str
    note: str
    tone: str = ""


def tiles(document: Mapping[str, Any]) -> list[Tile]:
    """Make the tiles of a document that has rows."""
    totals, data = document["totals"], document["data"]
    seconds = max((data["last_ms"] - data["first_ms"]) / 1000, 1)
    waits, runs = (document["percentiles_ms"][kind].get("all", {}) for kind in ("wait", "run"))
    cost = document["retry_cost"]
    gaps = document["gaps"]
    missing = sum(gap["missing"] or 0 for gap in gaps)
    return [
        Tile("Sent", count(totals["in"]), f"{decimal(totals['in'] / seconds)}/s"),
        Tile("Acked", count(totals["acked"]), f"{decimal(totals['acked'] / seconds)}/s"),
        Tile("Failed attempts", count(cost["failed"]), f"{percent(cost['share'])} of run time"),
        Tile(
            "Dead",
            count(totals["still_dead"]),
            "at the end" if totals["still_dead"] else "none at the end",
            "bad" if totals["still_dead"] else "good",
        ),
        Tile("Backlog", count(totals["backlog"]), f"oldest {span(totals['oldest_s'])}"),
        Tile("Wait, median", span_ms(waits.get("p50_ms")), f"p99 {span_ms(waits.get('p99_ms'))}"),
        Tile("Run, median", span_ms(runs.get("p50_ms")), f"p99 {span_ms(runs.get('p99_ms'))}"),
        Tile(
            "Journal",
            "whole" if not gaps else count(len(gaps), "gap"),
            "no event is missing" if not gaps else f"{count(missing, 'event')} missing",
            "bad" if gaps else "good",
        ),
    ]
