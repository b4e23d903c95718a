"""What the demo looks like at one moment: the value that the views draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.demo.app import check_file, index_file, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qworker.client.commands.inspecting import Inspection
    from qworker.consumer.supervisor import Supervisor

__all__ = ["TASKS", "Snapshot", "TaskProgress", "WorkerProgress", "take_snapshot"]

#: The tasks in the order in which a file passes through them; each has a queue of its own.
TASKS: Final = (index_file, check_file, total)


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One task: messages sent, ended well, tried again after a failure, and dead."""

    name: str
    sent: int
    acked: int
    retried: int
    dead: int

    @property
    def ended(self) -> int:
        """Messages that are done with."""
        return self.acked + self.dead


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One worker: what it has handled, and the task that it runs, '' between two."""

    pid: int
    handled: int
    running: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment, `elapsed_s` after the first message was sent. `stored`: messages that are not done with."""

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
        """Messages done with, of all tasks."""
        return sum(task.ended for task in self.tasks)

    @property
    def retried(self) -> int:
        """Failures that were, or will be, tried again."""
        return sum(task.retried for task in self.tasks)

    @property
    def dead(self) -> int:
        """Dead letters."""
        return sum(task.dead for task in self.tasks)


def take_snapshot(
    elapsed_s: float, queues: Mapping[str, Inspection], supervisor: Supervisor | None
) -> Snapshot:
    """Put a moment together from what the server counts and from the boards of the workers."""
    names = sorted(task.name for task in TASKS)
    return Snapshot(
        elapsed_s,
        tuple(_task(task.name, queues[task.queue].stats) for task in TASKS),
        tuple(
            WorkerProgress(
                child.pid,
                child.board.handled,
                next((names[view.task] for view in child.board.running()), ""),
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
        # The last failure of a message is not tried again.
        retried=max(0, stats.get("nacked", 0) - stats.get("dead:max_receives", 0)),
        dead=stats.get("dead", 0),
    )
