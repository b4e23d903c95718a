"""The tables of a sample: queues, workers, running handlers, tasks and findings of the doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.queue.show import state_of
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.glyphs import Glyphs, sparkline
from qworker.cli.top.full.view import Key, View
from qworker.client.inspect.peek import Inspection
from qworker.client.namespace.workers import Running, Worker
from qworker.errors import BrokenQueueError
from qworker.formats import ago, count, rate, size, span
from qworker.health.finding import LONG_RUN_S, Finding, Status
from qworker.monitor.rows import QueueRow, row_of, urgency
from qworker.monitor.sample import Sample

if TYPE_CHECKING:
    from qworker.errors import QworkerError

__all__ = ["Findings", "Handlers", "Queues", "TaskRow", "Tasks", "Workers", "aged"]

#: Seconds from which a ready message, or a handler, is shown as old, and as too old.
_OLD_S: Final = 60.0
_TOO_OLD_S: Final = 600.0
#: The same of a handler; from the second on the doctor warns too.
_LONG_S: Final = 60.0

_NOT_READ: Final = Cell("not read", "bad")

_OPEN: Final = Key("enter", "open", "open", "Open the row: all there is about it.")


def aged(seconds: float, old_s: float = _OLD_S, too_old_s: float = _TOO_OLD_S) -> Cell:
    """Write an age in the tone that it deserves."""
    tone = "bad" if seconds >= too_old_s else "warn" if seconds >= old_s else ""
    return Cell(span(seconds), tone)


class Queues(View[QueueRow]):
    """Queues: what needs a person first, then the longest wait."""

    name = "queues"
    title = "Queues"
    keys = (
        _OPEN,
        Key("u", "pause", "pause", "Pause the queue: refuse sends, deliver nothing, or both."),
        Key("r", "resume", "resume", "Resume the queue in both directions."),
        Key("d", "dead letters", "dead", "Show the dead letters of this queue alone."),
    )

    def __init__(self, namespace: str, glyphs: Glyphs) -> None:
        super().__init__()
        self._namespace = namespace
        self._sample = Sample()
        #: Rows that are still right: making 10,000 anew takes a tenth of a second.
        self._made: dict[str, tuple[Inspection | QworkerError, Any, QueueRow]] = {}

        def figure(name: str, written: Callable[[Inspection], Cell | str]) -> Any:
            return lambda row, _: "" if row.queue is None else written(row.queue)

        def per_s(name: str, tone: str = "") -> Any:
            def write(row: QueueRow, _: int) -> Cell | str:
                if row.flow is None:
                    return ""
                text = rate(getattr(row.flow, name))
                return Cell(text, "dim" if text == "0" else tone)

            return write

        def number(name: str) -> Any:
            return lambda row: getattr(row.queue, name) if row.queue is not None else -1.0

        def flow(name: str) -> Any:
            return lambda row: getattr(row.flow, name) if row.flow is not None else -1.0

        def drawn(series: str) -> Any:
            def write(row: QueueRow, width: int) -> Cell:
                kept = getattr(self._sample, series).get(row.name)
                return drawn_cell(sparkline(kept, width, glyphs), glyphs)

            return write

        def dead(queue: Inspection) -> Cell:
            return Cell(count(queue.dead), "warn" if queue.dead else "dim")

        def oldest(queue: Inspection) -> Cell | str:
            return aged(queue.oldest_age_s) if queue.ready else ""

        def some(name: str) -> Any:
            def write(queue: Inspection) -> Cell:
                text = count(getattr(queue, name))
                return Cell(text, "dim" if text == "0" else "")

            return figure(name, write)

        self.columns = (
            GridColumn(
                "QUEUE",
                lambda row, _: Cell(row.name, row.tone if row.queue is None else ""),
                lambda row: row.name,
                14,
                44,
            ),
            GridColumn("READY", some("ready"), number("ready"), 7, 11, number=True),
            GridColumn(
                "OLDEST", figure("oldest", oldest), number("oldest_age_s"), 7, 8, number=True
            ),
            GridColumn("UNACKED", some("unacked"), number("unacked"), 7, 9, number=True, spare=3),
            GridColumn("DELAYED", some("delayed"), number("delayed"), 7, 9, number=True, spare=6),
            GridColumn("DEAD", figure("dead", dead), number("dead"), 6, 9, number=True),
            GridColumn("SENT/S", per_s("sent"), flow("sent"), 6, 8, number=True, spare=5),
            GridColumn("DONE/S", per_s("done"), flow("done"), 6, 8, number=True, spare=2),
            GridColumn(
                "FAILED/S", per_s("failed", "warn"), flow("failed"), 8, 8, number=True, spare=4
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

    def words(self, row: QueueRow) -> str:
        """Search its name and its states."""
        return " ".join([row.name, *(text for text, _ in row.states)])

    def empty(self) -> str:
        """Say how a queue is created."""
        return f"no queue in namespace {self._namespace!r} yet: qworker send QUEUE BODY"


class Workers(View[Worker]):
    """Workers: those that are gone or leave first."""

    name = "workers"
    title = "Workers"
    keys = (
        Key("enter", "open", "open", "Open the worker, with the live stack of each handler."),
        Key("d", "drain", "drain", "Let it end its handlers, then exit."),
        Key("+", "more", "scale('+1')", "Add a process.", "+"),
        Key("-", "fewer", "scale('-1')", "Take a process away.", "-"),
        Key("=", "scale", "scale('')", "Set the number of its processes."),
    )

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace
        self.columns = (
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

    def read(self, sample: Sample) -> Sequence[Worker]:
        """Return the workers."""
        return sample.workers

    def name_of(self, row: Worker) -> str:
        """Name it as it names itself."""
        return row.name

    def urgency(self, row: Worker) -> Any:
        """Sort what is gone or leaves first."""
        return (not row.is_gone, not row.described.leaving)

    def words(self, row: Worker) -> str:
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

    def words(self, row: Running) -> str:
        """Search all that is shown."""
        return f"{row.task} {row.message_id} {row.worker} {row.pid}"

    def empty(self) -> str:
        """Say that none runs."""
        return "no handler is running"

    def badge(self) -> tuple[str, str]:
        """Warn of one that runs long."""
        longest = max((handler.seconds for handler in self._all), default=0.0)
        return (f"{len(self._all):,}", "bad" if longest >= LONG_RUN_S else "")


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

    def words(self, row: TaskRow) -> str:
        """Search its name, and whether it is paused."""
        return row.name if row.paused_ms is None else f"{row.name} paused"

    def empty(self) -> str:
        """Say who names tasks."""
        return "no worker reports its tasks"

    def badge(self) -> tuple[str, str]:
        """Warn of paused ones."""
        return (f"{len(self._all):,}", "warn" if self.paused else "")


class Findings(View[Finding]):
    """What the checks of the doctor found: problems first."""

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

    def words(self, row: Finding) -> str:
        """Search all of it."""
        return f"{row.status.value} {row.check} {row.text} {row.fix}"

    def empty(self) -> str:
        """Say that the checks have not ended."""
        return "the checks have not been made yet"

    def badge(self) -> tuple[str, str]:
        """Count what is not ok."""
        worst = min((_SEVERITY[finding.status] for finding in self._all), default=2)
        number = sum(finding.status is not Status.OK for finding in self._all)
        return (f"{number:,}" if number else "ok" if self._all else "", ("bad", "warn", "")[worst])


_SEVERITY: Final = {Status.PROBLEM: 0, Status.WARNING: 1, Status.OK: 2}
_TONES: Final = {Status.PROBLEM: "bad", Status.WARNING: "warn", Status.OK: "good"}


def _status(row: Finding, _: int) -> Cell:
    return Cell(row.status.value, _TONES[row.status])


def _seen(row: Worker, _: int) -> Cell | str:
    age = span(row.age_ms // 1000)
    if row.is_gone:
        return Cell(f"gone {age}", "bad")
    return Cell("leaving", "warn") if row.described.leaving else f"{age} ago"


def drawn_cell(text: str, glyphs: Glyphs) -> Cell:
    """Make a cell of a sparkline; one along the bottom is not worth a look."""
    return Cell(text, "spark" if set(text) - {" ", glyphs.levels[0]} else "dim")


def _paused(row: TaskRow, _: int) -> Cell | str:
    if row.paused_ms is None:
        return ""
    since = ago(row.paused_ms, row.now_ms) if row.paused_ms else ""
    return Cell(f"paused {since}".rstrip(), "warn")


def _state(sample: Sample, row: QueueRow) -> Cell:
    queue = sample.queues.get(row.name)
    if queue is None:
        return Cell("gone", "bad")
    return state_of(queue) if isinstance(queue, Inspection | BrokenQueueError) else _NOT_READ


def _rank(row: QueueRow) -> Any:
    """Sort states: the worst first, then by their words."""
    return ({"bad": 0, "warn": 1}.get(row.tone, 2), row.states)
