"""Queues as rows: found, sorted, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qworker.monitor.rows import SORTS, QueueRow, row_of, urgency

if TYPE_CHECKING:
    from qworker.web.look import Look

__all__ = ["rows_of"]


def rows_of(look: Look) -> list[QueueRow]:
    """Return the queues whose name contains the query's `q`, sorted by its `sort`."""
    wanted = look.query.get("q", "").strip().lower()
    key = SORTS.get(look.query.get("sort", ""), urgency)
    rows = [row_of(look.sample, name) for name in look.sample.queues if wanted in name]
    return sorted(rows, key=lambda row: (-key(row), row.name))
