"""The table of limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.cells import OPEN
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.view import View
from qworker.client.manage.limit_load import LimitLoad
from qworker.formats import count
from qworker.monitor.sample import Sample

__all__ = ["LimitRow", "Limits"]


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit of a queue, and how much of it was used when the sample was taken."""

    queue: str
    load: LimitLoad
    now_ms: int


class Limits(View[LimitRow]):
    """Limits under which messages wait: those with the most first."""

    name = "limits"
    title = "Limits"
    keys = (OPEN,)

    def __init__(self) -> None:
        super().__init__()
        #: By queue, as last read.
        self.found: Sequence[tuple[str, LimitLoad]] = ()
        self.columns = (
            GridColumn("QUEUE", lambda row, _: row.queue, lambda row: row.queue, 10, 40),
            GridColumn("LIMIT", lambda row, _: row.load.name, lambda row: row.load.name, 12, 50),
            GridColumn("IS", lambda row, _: row.load.limit.text, None, 15, 50, spare=2),
            _numbers("GROUPS", lambda load: load.groups, spare=1),
            _numbers("WAITING", lambda load: load.waiting),
            _numbers("RUNNING", lambda load: load.running),
            GridColumn("WAITS FOR", _waits_for, None, 14, 40),
        )

    def read(self, sample: Sample) -> Sequence[LimitRow]:
        """Return the limits that were last read."""
        return [LimitRow(queue, load, sample.now_ms) for queue, load in self.found]

    def name_of(self, row: LimitRow) -> str:
        """Name it by its queue and name."""
        return f"{row.queue} {row.load.name}"

    def urgency(self, row: LimitRow) -> Any:
        """Sort the one with the most waiting messages first."""
        return -row.load.waiting

    def filter_text(self, row: LimitRow) -> str:
        """Search its queue, its name, and the limit."""
        return f"{row.queue} {row.load.name} {row.load.limit.text}"

    def empty(self) -> str:
        """Say which limits stand here."""
        return (
            "no message waits under a limit: qworker limit ls lists all, qworker limit set adds one"
        )

    def badge(self) -> tuple[str, str]:
        """Count them, once they were read."""
        return (f"{len(self._all):,}" if self._all else "", "")


def _numbers(title: str, of: Any, spare: int = 0) -> GridColumn[LimitRow]:
    return GridColumn(
        title, lambda row, _: count(of(row.load)), lambda row: of(row.load), 7, 10, True, spare
    )


def _waits_for(row: LimitRow, _: int) -> Cell | str:
    held = row.load.waits_for(row.now_ms)
    return Cell(held, "warn") if held else "its turn"
