"""The table of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.view import Key, View
from qworker.formats import ago, count
from qworker.monitor.sample import Sample

__all__ = ["TaskRow", "Tasks"]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task, the number of living workers that know it, its running calls, and since when it is paused."""

    name: str
    workers: int = 0
    running: int = 0
    paused_ms: int | None = None
    now_ms: int = 0


class Tasks(View[TaskRow]):
    """Tasks that workers know: the paused ones first."""

    name = "tasks"
    title = "Tasks"
    keys = (
        Key("enter", "handlers", "open", "Show its running handlers."),
        Key("u", "pause", "pause_task", "Start no call of the task until it is resumed."),
        Key("r", "resume", "resume_task", "Resume the task."),
    )

    def __init__(self) -> None:
        super().__init__()
        #: Paused tasks as last read: since when, in ms.
        self.paused: Mapping[str, int] = {}
        self.columns = (
            GridColumn("TASK", lambda row, _: row.name, lambda row: row.name, 24, 60),
            GridColumn(
                "WORKERS", lambda row, _: count(row.workers), lambda row: row.workers, 7, 9, True
            ),
            GridColumn(
                "RUNNING", lambda row, _: count(row.running), lambda row: row.running, 7, 9, True
            ),
            GridColumn("PAUSED", _paused, lambda row: row.paused_ms or 0, 16, 24),
        )

    def read(self, sample: Sample) -> Sequence[TaskRow]:
        """Count workers and running calls of each task."""
        workers: dict[str, int] = dict.fromkeys(self.paused, 0)
        running: dict[str, int] = {}
        for worker in sample.workers:
            if worker.is_gone:
                continue
            for task in worker.described.tasks or ():
                workers[task] = workers.get(task, 0) + 1
            for handler in worker.running:
                running[handler.task] = running.get(handler.task, 0) + 1
        return [
            TaskRow(name, known, running.get(name, 0), self.paused.get(name), sample.now_ms)
            for name, known in workers.items()
        ]

    def name_of(self, row: TaskRow) -> str:
        """Name it by the task."""
        return row.name

    def urgency(self, row: TaskRow) -> Any:
        """Sort what is paused first."""
        return row.paused_ms is None

    def filter_text(self, row: TaskRow) -> str:
        """Search its name, and whether it is paused."""
        return row.name if row.paused_ms is None else f"{row.name} paused"

    def empty(self) -> str:
        """Say that workers name tasks."""
        return "no worker reports its tasks"

    def badge(self) -> tuple[str, str]:
        """Warn of paused ones."""
        return (f"{len(self._all):,}", "warn" if self.paused else "")


def _paused(row: TaskRow, _: int) -> Cell | str:
    if row.paused_ms is None:
        return ""
    since = ago(row.paused_ms, row.now_ms) if row.paused_ms else ""
    return Cell(f"paused {since}".rstrip(), "warn")
