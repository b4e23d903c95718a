"""The tables of workers and of running handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.cells import aged
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.view import Key, View
from qworker.client.namespace.workers import Running, Worker
from qworker.formats import count, rate, size, span
from qworker.health.finding import LONG_RUN_S
from qworker.monitor.sample import Sample

__all__ = ["Handlers", "Workers"]

#: The same of a handler; from the second on the doctor warns too.
_LONG_S: Final = 60.0


def _seen(row: Worker, _: int) -> Cell | str:
    age = span(row.age_ms // 1000)
    if row.is_gone:
        return Cell(f"gone {age}", "bad")
    return Cell("leaving", "warn") if row.described.leaving else f"{age} ago"


class Workers(View[Worker]):
    """Workers: those that are gone or leave first."""

    name = "workers"
    title = "Workers"
    keys = (
        Key("enter", "open", "open", "Open the worker, with the live stack of each handler."),
        Key("d", "drain", "drain", "Let it finish its handlers, then exit."),
        Key("+", "more", "scale('+1')", "Add a process.", "+"),
        Key("-", "fewer", "scale('-1')", "Remove a process.", "-"),
        Key("=", "scale", "scale('')", "Set the number of its processes."),
    )

    columns = (
        GridColumn(
            "WORKER",
            lambda row, _: Cell(row.name, "bad" if row.is_gone else ""),
            lambda row: row.name,
            18,
            40,
        ),
        GridColumn(
            "QUEUES",
            lambda row, _: ", ".join(row.described.queues),
            lambda row: row.described.queues,
            12,
            60,
            spare=1,
        ),
        GridColumn(
            "APP",
            lambda row, _: row.described.app,
            lambda row: row.described.app,
            12,
            30,
            spare=6,
        ),
        GridColumn(
            "PROCS",
            lambda row, _: str(len(row.described.children)),
            lambda row: len(row.described.children),
            5,
            number=True,
        ),
        GridColumn(
            "RUNNING",
            lambda row, _: count(len(row.running)),
            lambda row: len(row.running),
            7,
            number=True,
        ),
        GridColumn(
            "DONE/S",
            lambda row, _: rate(row.described.handled_per_s),
            lambda row: row.described.handled_per_s,
            6,
            8,
            number=True,
        ),
        GridColumn(
            "FAILED",
            lambda row, _: Cell(count(row.failed), "" if row.failed else "dim"),
            lambda row: row.failed,
            6,
            9,
            number=True,
            spare=4,
        ),
        GridColumn(
            "MEMORY",
            lambda row, _: size(row.rss_bytes),
            lambda row: row.rss_bytes,
            8,
            10,
            number=True,
            spare=3,
        ),
        GridColumn("SEEN", _seen, lambda row: row.age_ms, 12, 18),
    )

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace

    def read(self, sample: Sample) -> Sequence[Worker]:
        """Return the workers."""
        return sample.workers

    def name_of(self, row: Worker) -> str:
        """Name it by its own name."""
        return row.name

    def urgency(self, row: Worker) -> Any:
        """Sort what is gone or leaves first."""
        return (not row.is_gone, not row.described.leaving)

    def filter_text(self, row: Worker) -> str:
        """Search its name, app, host and queues."""
        state = "gone" if row.is_gone else "leaving" if row.described.leaving else ""
        return " ".join([row.name, row.described.app, *row.described.queues, state])

    def empty(self) -> str:
        """Say how one is started."""
        return f"no worker in namespace {self._namespace!r}: qworker run MODULE"

    def badge(self) -> tuple[str, str]:
        """Count those that are alive; none is a problem."""
        gone = sum(worker.is_gone for worker in self._all)
        return (f"{len(self._all):,}", "bad" if gone or not self._all else "")


class Handlers(View[Running]):
    """Running handlers: the longest first."""

    name = "handlers"
    title = "Handlers"
    keys = (
        Key("enter", "stack", "open", "Show the live stack of the handler."),
        Key("u", "pause task", "pause_task", "Start no call of its task until it is resumed."),
        Key("r", "resume task", "resume_task", "Resume its task."),
    )

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace
        self.columns = (
            GridColumn(
                "RUNNING",
                lambda row, _: aged(row.seconds, _LONG_S, LONG_RUN_S),
                lambda row: row.seconds,
                8,
                number=True,
            ),
            GridColumn("TASK", lambda row, _: row.task, lambda row: row.task, 16, 48),
            GridColumn("RECEIPT", lambda row, _: row.message_id, None, 16, 34, spare=2),
            GridColumn(
                "PID", lambda row, _: str(row.pid), lambda row: row.pid, 7, number=True, spare=1
            ),
            GridColumn("WORKER", lambda row, _: row.worker, lambda row: row.worker, 18, 60),
        )

    def read(self, sample: Sample) -> Sequence[Running]:
        """Return the handlers of workers that are alive."""
        alive = (worker for worker in sample.workers if not worker.is_gone)
        return [handler for worker in alive for handler in worker.running]

    def name_of(self, row: Running) -> str:
        """Name it by its receipt and process."""
        return f"{row.worker} {row.pid} {row.message_id}"

    def urgency(self, row: Running) -> Any:
        """Sort the longest first."""
        return -row.seconds

    def filter_text(self, row: Running) -> str:
        """Search all that is shown."""
        return f"{row.task} {row.message_id} {row.worker} {row.pid}"

    def empty(self) -> str:
        """Say that none runs."""
        return "no handler is running"

    def badge(self) -> tuple[str, str]:
        """Warn of one that runs long."""
        longest = max((handler.seconds for handler in self._all), default=0.0)
        return (f"{len(self._all):,}", "bad" if longest >= LONG_RUN_S else "")
