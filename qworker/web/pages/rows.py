"""Queues as rows: found, sorted, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qworker.monitor.rows import SORTS, QueueRow, row_of, urgency

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["rows_of"]


def rows_of(request: PageRequest) -> list[QueueRow]:
    """Return the queues whose name contains the query's `q`, sorted by its `sort`."""
    wanted = request.query.get("q", "").strip().lower()
    key = SORTS.get(request.query.get("sort", ""), urgency)
    rows = [row_of(request.sample, name) for name in request.sample.queues if wanted in name]
    return sorted(rows, key=lambda row: (-key(row), row.name))
