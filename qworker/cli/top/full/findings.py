"""The table of the doctor's findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.view import Key, View
from qworker.health.finding import Finding, Status
from qworker.monitor.sample import Sample

__all__ = ["Findings"]

_SEVERITY: Final = {Status.PROBLEM: 0, Status.WARNING: 1, Status.OK: 2}
_TONES: Final = {Status.PROBLEM: "bad", Status.WARNING: "warn", Status.OK: "good"}


class Findings(View[Finding]):
    """The doctor's findings: problems first."""

    name = "health"
    title = "Health"
    keys = (Key("enter", "open", "open", "Read the finding, and what to do about it."),)

    def __init__(self) -> None:
        super().__init__()
        self.columns = (
            GridColumn("STATUS", _status, lambda row: _SEVERITY[row.status], 8),
            GridColumn("CHECK", lambda row, _: row.check, lambda row: row.check, 14, 22),
            GridColumn("FOUND", lambda row, _: row.text, None, 30, 110),
            GridColumn("WHAT TO DO", lambda row, _: Cell(row.fix, "dim"), None, 30, 90, spare=1),
        )

    def read(self, sample: Sample) -> Sequence[Finding]:
        """Return the findings."""
        return sample.findings or ()

    def name_of(self, row: Finding) -> str:
        """Name it by the check."""
        return f"{row.check} {row.text}"

    def urgency(self, row: Finding) -> Any:
        """Sort problems first."""
        return _SEVERITY[row.status]

    def filter_text(self, row: Finding) -> str:
        """Search all of it."""
        return f"{row.status.value} {row.check} {row.text} {row.fix}"

    def empty(self) -> str:
        """Say that the checks have not ended."""
        return "the checks have not been made yet"

    def badge(self) -> tuple[str, str]:
        """Count the findings that are not ok."""
        worst = min((_SEVERITY[finding.status] for finding in self._all), default=2)
        number = sum(finding.status is not Status.OK for finding in self._all)
        return (f"{number:,}" if number else "ok" if self._all else "", ("bad", "warn", "")[worst])


def _status(row: Finding, _: int) -> Cell:
    return Cell(row.status.value, _TONES[row.status])
