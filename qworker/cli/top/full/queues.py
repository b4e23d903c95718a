"""The table of queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.queue.tables import state_of
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.glyphs import Glyphs, sparkline
from qworker.cli.top.full.view import Key, View
from qworker.client.inspect.peek import Inspection
from qworker.errors import BrokenQueueError
from qworker.formats import count, rate
from qworker.monitor.rows import QueueRow, row_of, urgency
from qworker.monitor.sample import Sample

if TYPE_CHECKING:
    from qworker.errors import QworkerError

from qworker.cli.top.full.cells import OPEN, aged, drawn_cell

__all__ = ["Queues"]

_NOT_READ: Final = Cell("not read", "bad")


class Queues(View[QueueRow]):
    """Queues: what needs a person first, then the longest wait."""

    name = "queues"
    title = "Queues"
    keys = (
        OPEN,
        Key("u", "pause", "pause", "Pause the queue: refuse sends, deliver nothing, or both."),
        Key("r", "resume", "resume", "Resume the queue in both directions."),
        Key("d", "dead letters", "dead", "Show the dead letters of this queue alone."),
    )

    def __init__(self, namespace: str, glyphs: Glyphs) -> None:
        super().__init__()
        self._namespace = namespace
        self._sample = Sample()
        #: Rows that are still right: remaking 10,000 takes a tenth of a second.
        self._made: dict[str, tuple[Inspection | QworkerError, Any, QueueRow]] = {}

        def drawn(series: str) -> Any:
            def write(row: QueueRow, width: int) -> Cell:
                kept = getattr(self._sample, series).get(row.name)
                return drawn_cell(sparkline(kept, width, glyphs), glyphs)

            return write

        self.columns = (
            GridColumn(
                "QUEUE",
                lambda row, _: Cell(row.name, row.tone if row.queue is None else ""),
                lambda row: row.name,
                14,
                44,
            ),
            GridColumn("READY", _some("ready"), _number("ready"), 7, 11, number=True),
            GridColumn("OLDEST", _figure(_oldest), _number("oldest_age_s"), 7, 8, number=True),
            GridColumn("UNACKED", _some("unacked"), _number("unacked"), 7, 9, number=True, spare=3),
            GridColumn("DELAYED", _some("delayed"), _number("delayed"), 7, 9, number=True, spare=6),
            GridColumn("DEAD", _figure(_dead), _number("dead"), 6, 9, number=True),
            GridColumn("SENT/S", _per_s("sent"), _flow("sent"), 6, 8, number=True, spare=5),
            GridColumn("DONE/S", _per_s("done"), _flow("done"), 6, 8, number=True, spare=2),
            GridColumn(
                "FAILED/S", _per_s("failed", "warn"), _flow("failed"), 8, 8, number=True, spare=4
            ),
            GridColumn("READY, 1 H", drawn("ready"), None, 10, 60, spare=8),
            GridColumn("DONE/S, 1 H", drawn("done"), None, 11, 60, spare=7),
            GridColumn("STATE", lambda row, _: _state(self._sample, row), _rank, 11, 24),
        )

    def read(self, sample: Sample) -> Sequence[QueueRow]:
        """Make rows of the queues."""
        self._sample = sample
        made = {}
        for name, queue in sample.queues.items():
            earlier = sample.earlier.get(name)
            known = self._made.get(name)
            if known is not None and known[0] is queue and known[1] is earlier:
                made[name] = known
            else:
                made[name] = (queue, earlier, row_of(sample, name))
        self._made = made
        return [row for _, _, row in made.values()]

    def name_of(self, row: QueueRow) -> str:
        """Name it by the queue."""
        return row.name

    def urgency(self, row: QueueRow) -> float:
        """Sort as the dashboard does."""
        return -urgency(row)

    def filter_text(self, row: QueueRow) -> str:
        """Search its name and its states."""
        return " ".join([row.name, *(text for text, _ in row.states)])

    def empty(self) -> str:
        """Say how a queue is created."""
        return f"no queue in namespace {self._namespace!r} yet: qworker send QUEUE BODY"


def _figure(written: Callable[[Inspection], Cell | str]) -> Any:
    """Write a cell of a queue that could be read; others are empty."""
    return lambda row, _: "" if row.queue is None else written(row.queue)


def _some(name: str) -> Any:
    """Write a number of messages, dim where there is none."""

    def write(queue: Inspection) -> Cell:
        text = count(getattr(queue, name))
        return Cell(text, "dim" if text == "0" else "")

    return _figure(write)


def _per_s(name: str, tone: str = "") -> Any:
    """Write a rate, dim where it is 0."""

    def write(row: QueueRow, _: int) -> Cell | str:
        if row.flow is None:
            return ""
        text = rate(getattr(row.flow, name))
        return Cell(text, "dim" if text == "0" else tone)

    return write


def _dead(queue: Inspection) -> Cell:
    return Cell(count(queue.dead), "warn" if queue.dead else "dim")


def _oldest(queue: Inspection) -> Cell | str:
    return aged(queue.oldest_age_s) if queue.ready else ""


def _number(name: str) -> Any:
    """Sort by a figure of the queue."""
    return lambda row: getattr(row.queue, name) if row.queue is not None else -1.0


def _flow(name: str) -> Any:
    """Sort by a rate."""
    return lambda row: getattr(row.flow, name) if row.flow is not None else -1.0


def _state(sample: Sample, row: QueueRow) -> Cell:
    queue = sample.queues.get(row.name)
    if queue is None:
        return Cell("gone", "bad")
    return state_of(queue) if isinstance(queue, Inspection | BrokenQueueError) else _NOT_READ


def _rank(row: QueueRow) -> Any:
    """Sort states: the worst first, then by their words."""
    return ({"bad": 0, "warn": 1}.get(row.tone, 2), row.states)
