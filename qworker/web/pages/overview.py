"""The overview: what needs a person, the figures of all queues, and the queues that wait longest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qworker.formats import count, rate, span
from qworker.health.finding import Status
from qworker.web.page_request import Page
from qworker.web.pages.rows import rows_of
from qworker.web.render import sparkline

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["overview", "queues"]

#: Queues of the overview, and of a page of the list.
_FIRST: Final = 10
_PER_PAGE: Final = 50


def overview(request: PageRequest) -> Page:
    """Show the namespace at a glance."""
    rows = rows_of(request)
    shown = rows[:_FIRST]
    findings = request.sample.findings
    return Page(
        "overview.html",
        "Overview",
        {
            "tiles": _tiles(request),
            "urgent": None
            if findings is None
            else [
                finding
                for status in (Status.PROBLEM, Status.WARNING)
                for finding in findings
                if finding.status is status
            ],
            "rows": shown,
            "number": len(rows),
            "workers": sum(not worker.is_gone for worker in request.sample.workers),
            "reapers": sum(not reaper.is_gone for reaper in request.sample.reapers),
        },
        tuple(row.name for row in shown),
        card=True,
    )


def queues(request: PageRequest) -> Page:
    """List the queues: found by a part of the name, sorted, in pages."""
    rows = rows_of(request)
    pages = max(1, -(-len(rows) // _PER_PAGE))
    number = request.number("page", highest=pages)
    shown = rows[(number - 1) * _PER_PAGE : number * _PER_PAGE]
    return Page(
        "queues.html",
        "Queues",
        {
            "rows": shown,
            "number": len(rows),
            "all": len(request.sample.queues),
            "page": number,
            "pages": pages,
            "first": (number - 1) * _PER_PAGE + 1,
        },
        tuple(row.name for row in shown),
        card=True,
    )


def _tiles(request: PageRequest) -> list[dict[str, Any]]:
    """Make the tiles of figures: a title, a number, a tone, a note, a picture of the last hour."""
    sample, read, flow = request.sample, request.sample.read(), request.sample.total_flow()
    totals = sample.totals
    ready, dead = sum(queue.ready for queue in read), sum(queue.dead for queue in read)
    oldest_s = max((queue.oldest_age_s for queue in read), default=0.0)

    def tile(title: str, text: str, series: str, note: str = "", tone: str = "") -> dict[str, Any]:
        write = (
            span if series == "oldest" else rate if series in ("sent", "done", "failed") else None
        )
        picture = sparkline(totals.get(series), title, *([write] if write else []))
        return {"title": title, "text": text, "note": note, "tone": tone, "picture": picture}

    def per_s(figure: str) -> str:
        return "–" if flow is None else rate(getattr(flow, figure))

    return [
        tile("Sent", per_s("sent"), "sent", "per second"),
        tile("Done", per_s("done"), "done", "per second"),
        tile(
            "Failed",
            per_s("failed"),
            "failed",
            "per second",
            "warn" if flow is not None and flow.failed >= 0.005 else "",
        ),
        tile(
            "Ready",
            count(ready),
            "ready",
            f"{count(sum(queue.unacked for queue in read))} unacked, "
            f"{count(sum(queue.delayed for queue in read))} delayed",
        ),
        tile("Oldest", span(oldest_s) if ready else "–", "oldest", "has been ready this long"),
        tile("Dead", count(dead), "dead", "dead letters", "warn" if dead else ""),
    ]
