"""Series over time: tables of sums in buckets, one value for each bucket from the first event to the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qworker.pipeline.report.sums import Key

__all__ = ["Buckets", "backlogs", "bucket_width", "carried_width", "flows", "no_flow", "sent"]

_WEEK_S: Final = 7 * 86_400
_WIDTHS_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86_400, _WEEK_S)
_MAX_BUCKETS: Final = 240

Rows = Mapping[Key, list[int]]


def bucket_width(span_s: float) -> int:
    """Choose the width of buckets in seconds; there are at most 240."""
    for width in _WIDTHS_S:
        if span_s / width <= _MAX_BUCKETS:
            return width
    return int(span_s / _MAX_BUCKETS / _WEEK_S + 1) * _WEEK_S


def carried_width(width_s: int) -> int:
    """The greatest width that divides this one and all widths that a longer span needs."""
    return 1 if width_s == 2 else min(width_s, _WEEK_S)


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


def flows(rows: Rows, buckets: Buckets) -> dict[str, dict[str, list[Any]]]:
    """Per queue: messages by their end, failed attempts, and seconds of handlers."""
    queues: dict[str, dict[str, list[Any]]] = {}
    for (name, bucket), (*numbers, busy_us) in rows.items():
        index = buckets.index(bucket)
        if index is None:
            continue
        queue = queues.setdefault(name, no_flow(buckets))
        for kind, number in zip(("acked", "ended", "dead", "failed"), numbers, strict=True):
            queue[kind][index] = number
        queue["busy_s"][index] = round(busy_us / 1_000_000, 3)
    return queues


def sent(rows: Rows, buckets: Buckets) -> dict[str, list[int]]:
    """Per queue: messages sent."""
    queues: dict[str, list[int]] = defaultdict(buckets.zeros)
    for (queue, bucket), (messages,) in rows.items():
        index = buckets.index(bucket)
        if index is not None:
            queues[queue][index] = messages
    return dict(queues)


def backlogs(rows: Rows, buckets: Buckets) -> dict[str, dict[str, list[Any]]]:
    """Per queue, at the end of each bucket: messages due and not ended, and the age of the oldest in seconds."""
    queues: dict[str, dict[str, list[Any]]] = {}
    for (name, begun, until), (messages, oldest_us) in rows.items():
        first = max(begun, buckets.first - 1)
        stop = buckets.last + 1 if until is None else min(until, buckets.last + 1)
        if stop <= first:
            continue
        queue = queues.setdefault(
            name, {"backlog": buckets.zeros(), "oldest_s": [0.0] * len(buckets)}
        )
        for bucket in range(max(first, buckets.first), stop):
            index = bucket - buckets.first
            queue["backlog"][index] += messages
            age_s = round((bucket + 1) * buckets.width_s - oldest_us / 1_000_000, 3)
            queue["oldest_s"][index] = max(queue["oldest_s"][index], age_s)
    return queues
