"""Series over time: rows of Spark in buckets, one value for each from that of the first event to that of the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Buckets", "backlogs", "bucket_width", "flows", "no_flow", "sent"]

_WIDTHS_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400)
_MOST_BUCKETS: Final = 240


def bucket_width(span_s: float) -> int:
    """Choose the width of buckets in seconds; there are at most 240."""
    for width in _WIDTHS_S:
        if span_s / width <= _MOST_BUCKETS:
            return width
    return int(span_s / _MOST_BUCKETS) + 1


@dataclass(frozen=True, slots=True)
class Buckets:
    """Intervals of `width_s` seconds, numbered since 1970, from `first` to `last`."""

    first: int
    last: int
    width_s: int

    @classmethod
    def over(cls, first_s: float, last_s: float) -> Buckets:
        """Cover a span, in seconds since 1970."""
        width = bucket_width(last_s - first_s)
        return cls(int(first_s // width), int(last_s // width), width)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def zeros(self) -> list[int]:
        """Make a series of zeros."""
        return [0] * len(self)

    def starts_ms(self) -> list[int]:
        """List the start of each, in ms since 1970."""
        return [bucket * self.width_s * 1000 for bucket in range(self.first, self.last + 1)]

    def index(self, bucket: int) -> int | None:
        """Return the index of a bucket in a series; None if it is outside."""
        return bucket - self.first if self.first <= bucket <= self.last else None


def no_flow(buckets: Buckets) -> dict[str, list[int]]:
    """Make the series of a queue without ends."""
    return {name: buckets.zeros() for name in ("acked", "ended", "dead", "failed", "busy_s")}


def flows(rows: Iterable[Any], buckets: Buckets) -> dict[str, dict[str, list[Any]]]:
    """Per queue: messages by their end, failed attempts, and seconds of handlers."""
    queues: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        index = buckets.index(row.bucket)
        if index is None:
            continue
        queue = queues.setdefault(row.queue, no_flow(buckets))
        for name in ("acked", "ended", "dead", "failed"):
            queue[name][index] = row[name]
        queue["busy_s"][index] = round(row.busy_ms / 1000, 3)
    return queues


def sent(rows: Iterable[Any], buckets: Buckets) -> dict[str, list[int]]:
    """Per queue: messages sent."""
    queues: dict[str, list[int]] = defaultdict(buckets.zeros)
    for row in rows:
        index = buckets.index(row.bucket) if row.bucket is not None else None
        if index is not None:
            queues[row.queue][index] = row["count"]
    return dict(queues)


def backlogs(rows: Iterable[Any], buckets: Buckets) -> dict[str, dict[str, list[Any]]]:
    """Per queue, at the end of each bucket: messages due and not ended, and the age of the oldest in seconds."""
    queues: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        if row.begun is None or row.until <= row.begun:
            continue
        queue = queues.setdefault(
            row.queue, {"backlog": buckets.zeros(), "oldest_s": [0.0] * len(buckets)}
        )
        oldest_s = row.oldest_ts.timestamp()
        for bucket in range(max(row.begun, buckets.first), min(row.until, buckets.last + 1)):
            index = bucket - buckets.first
            queue["backlog"][index] += row.messages
            age_s = round((bucket + 1) * buckets.width_s - oldest_s, 3)
            queue["oldest_s"][index] = max(queue["oldest_s"][index], age_s)
    return queues
