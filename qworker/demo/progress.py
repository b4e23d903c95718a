"""The progress of the demo at one moment, which the views draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.demo.app import check_file, index_file, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qworker.consumer.supervisor.supervisor import Supervisor
    from qworker.engine.inspect import Inspection

__all__ = ["TASKS", "DemoProgress", "TaskProgress", "WorkerProgress", "take_snapshot"]

#: The tasks in the order in which a file passes through them; each has its own queue.
TASKS: Final = (index_file, check_file, total)


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One task: messages sent, acked, retried after a failure, and dead."""

    name: str
    sent: int
    acked: int
    retried: int
    dead: int

    @property
    def ended(self) -> int:
        """Messages that are done."""
        return self.acked + self.dead


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One worker: how many messages it has handled, and the task that it runs, or ''."""

    pid: int
    handled: int
    running: str


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """The progress `elapsed_s` after the first send. `stored`: messages that are not done."""

    elapsed_s: float
    tasks: tuple[TaskProgress, ...]
    workers: tuple[WorkerProgress, ...]
    stored: int

    @property
    def sent(self) -> int:
        """Messages sent, of all tasks."""
        return sum(task.sent for task in self.tasks)

    @property
    def ended(self) -> int:
        """Messages that are done, of all tasks."""
        return sum(task.ended for task in self.tasks)

    @property
    def retried(self) -> int:
        """Failures that were or will be retried."""
        return sum(task.retried for task in self.tasks)

    @property
    def dead(self) -> int:
        """Dead letters."""
        return sum(task.dead for task in self.tasks)


def take_snapshot(
    elapsed_s: float, queues: Mapping[str, Inspection], supervisor: Supervisor | None
) -> DemoProgress:
    """Combine the server's counters with the boards of the workers."""
    names = sorted(task.name for task in TASKS)
    return DemoProgress(
        elapsed_s,
        tuple(_task(task.name, queues[task.queue].stats) for task in TASKS),
        tuple(
            WorkerProgress(
                child.pid,
                child.board.handled,
                next((names[view.task] for view in child.board.running.views()), ""),
            )
            for child in (supervisor.children if supervisor else ())
        ),
        sum(queue.stored for queue in queues.values()),
    )


def _task(name: str, stats: Mapping[str, int]) -> TaskProgress:
    return TaskProgress(
        name,
        sent=stats.get("sent", 0),
        acked=stats.get("acked", 0),
        # The last failure of a message is not retried.
        retried=max(0, stats.get("nacked", 0) - stats.get("dead:max_receives", 0)),
        dead=stats.get("dead", 0),
    )
