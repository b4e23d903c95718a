"""Queues as rows of a table: their states in words, and what each column is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.peek import Inspection
from qworker.errors import BrokenQueueError
from qworker.formats import span
from qworker.health.queues import OVERDUE_S

if TYPE_CHECKING:
    from qworker.monitor.sample import Flow, Sample

__all__ = ["SORTS", "QueueRow", "row_of", "urgency"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of a table; `states` in words, each with its tone: good, warn, bad.

    `problem`: why there is no reading of it.
    """

    name: str
    queue: Inspection | None
    states: tuple[tuple[str, str], ...]
    flow: Flow | None
    problem: str = ""

    @property
    def tone(self) -> str:
        """The worst tone of its states."""
        tones = [tone for _, tone in self.states]
        return next((tone for tone in ("bad", "warn") if tone in tones), "good")


def _number(row: QueueRow, name: str) -> float:
    return float(getattr(row.queue, name)) if row.queue is not None else 0.0


def _per_s(row: QueueRow, name: str) -> float:
    return float(getattr(row.flow, name)) if row.flow is not None else 0.0


def urgency(row: QueueRow) -> float:
    """Return how much a queue needs a person: broken or overdue first, then the longest wait."""
    if row.queue is None:
        return float("inf")
    worst = {"bad": 1e12, "warn": 1e10}.get(row.tone, 0.0)
    return worst + max(row.queue.oldest_age_s, row.queue.overdue_s)


#: Column → what it is sorted by, the highest first. A queue's name sorts the other way.
SORTS: Final[Mapping[str, Callable[[QueueRow], float]]] = {
    "urgency": urgency,
    "name": lambda row: 0.0,
    "ready": lambda row: _number(row, "ready"),
    "oldest": lambda row: _number(row, "oldest_age_s"),
    "unacked": lambda row: _number(row, "unacked"),
    "delayed": lambda row: _number(row, "delayed"),
    "dead": lambda row: _number(row, "dead"),
    "sent": lambda row: _per_s(row, "sent"),
    "done": lambda row: _per_s(row, "done"),
    "failed": lambda row: _per_s(row, "failed"),
}


def row_of(sample: Sample, name: str) -> QueueRow:
    """Make the row of a queue."""
    queue = sample.queues[name]
    if not isinstance(queue, Inspection):
        state = "broken" if isinstance(queue, BrokenQueueError) else "not read"
        return QueueRow(name, None, ((state, "bad"),), None, str(queue))
    return QueueRow(name, queue, tuple(_states(queue)), sample.flow(name))


def _states(queue: Inspection) -> list[tuple[str, str]]:
    states = []
    if queue.overdue_s > OVERDUE_S:
        states.append(("overdue", "bad"))
    if queue.unread:
        states.append(("partly unread", "bad"))
    if queue.is_full:
        states.append(("full", "bad"))
    if queue.paused:
        states.append(("paused" if queue.paused == "all" else f"paused {queue.paused}", "warn"))
    if queue.limited_until_ms is not None:
        left_s = (queue.limited_until_ms - queue.now_ms) / 1000
        states.append((f"rate limited {span(left_s)}", "warn"))
    return states or [("ok", "good")]
