"""How a child ended, and which of the messages that ran in it are to blame."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.counters import CRASHED, MAX_TASKS, OTHER, TIME_LIMIT
from qworker.consumer.board.crash import cause_of, crash_stack, handler_stack, slot_of
from qworker.consumer.board.stacks import stack_of

if TYPE_CHECKING:
    from qworker.consumer.board.board import Board
    from qworker.consumer.board.states import RunningView
    from qworker.consumer.manifest import ManifestTask

__all__ = ["Death", "death_of", "ending_of"]

_MAX_CHARACTERS: Final = 2048


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a child. A message is named by its lease slot and its position in the lease.

    `accused`: the messages to blame → max receives of their tasks; empty if unknown. `running`: messages whose handlers
    ran → when these began, and their tasks; `at`: when the child was found dead. `error`: class and text for dead
    letters, `errors` those of some messages. `outcome`: as which they are counted. `stack`: where it crashed, if known.
    `stopping`: it was cut off when its worker stopped, and no message is to blame. `cancelled`: the messages for which
    an operator has ended it. `idle_before`: the previous child of its slot died without a running handler, too.
    `tasks`: names of its tasks, in the order of their numbers → queue and task under which they are counted.
    """

    code: int
    accused: Mapping[tuple[int, int], int | None] = field(default_factory=dict)
    error: tuple[str, str] = ("", "")
    stack: str = ""
    stopping: bool = False
    idle_before: bool = False
    cancelled: frozenset[tuple[int, int]] = frozenset()
    running: Mapping[tuple[int, int], tuple[float, str]] = field(default_factory=dict)
    at: float = 0.0
    outcome: str = CRASHED
    errors: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    tasks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    pid: int = 0

    def blame(self, message: tuple[int, int], running: int) -> float:
        """The share of the blame that one of `running` messages has, from 0 to 1."""
        if self.stopping or message in self.cancelled:
            return 0.0
        if self.accused:
            return float(message in self.accused)
        return 1 / running

    def error_of(self, message: tuple[int, int]) -> tuple[str, str]:
        """Class and text for a dead letter."""
        return self.errors.get(message, self.error)


def death_of(
    board: Board,
    tasks: Sequence[ManifestTask],
    code: int,
    *,
    pid: int = 0,
    overdue: Sequence[RunningView] = (),
    idle_before: bool = False,
    stopping: bool = False,
    stacks: str = "",
) -> Death:
    """Find out how a child has ended.

    `overdue`: handlers past their time limit, for which it was ended; `stacks`: those of its threads at that time.
    """
    running = board.running.views()
    stack = crash_stack(board)
    errors: dict[tuple[int, int], tuple[str, str]] = {}
    at = boot_time()
    if overdue:
        guilty = list(overdue)
        error = ("TimeLimitError", "the handler ran past its time limit; its process was ended")
        errors = {
            (view.lease, view.position): ("TimeLimitError", _overdue_text(view, at, stacks))
            for view in overdue
        }
    else:
        slot = slot_of(stack)
        guilty = [view for view in running if view.slot == slot or len(running) == 1]
        error = ("WorkerDiedError", _death_text(code, stack))
    accused = {
        (view.lease, view.position): tasks[view.task].max_receives
        for view in guilty
        # The slot of a batch handler represents many messages: any of them may be to blame.
        if view.task < len(tasks) and not tasks[view.task].batch
    }
    return Death(
        code,
        accused,
        error,
        stack,
        stopping=stopping,
        idle_before=idle_before,
        running={
            (view.lease, view.position): (view.started, tasks[view.task].name)
            for view in running
            if view.task < len(tasks)
        },
        at=at,
        outcome=TIME_LIMIT if overdue else CRASHED,
        errors=errors,
        tasks={
            task.name: (task.queue, task.name) if number < MAX_TASKS - 1 else (OTHER, OTHER)
            for number, task in enumerate(tasks)
        },
        pid=pid,
    )


def _death_text(code: int, stack: str) -> str:
    cause = cause_of(stack)
    problem = f"{cause}: " * bool(cause) + f"the process {ending_of(code)} while the message ran"
    if code == -signal.SIGKILL:
        problem += "; the kernel does that when memory runs out (see dmesg)"
    return f"{problem}\n{handler_stack(stack)}".rstrip()[:_MAX_CHARACTERS]


def _overdue_text(view: RunningView, now: float, stacks: str) -> str:
    """Name the time limit of a handler, and its position when its process was ended."""
    problem = (
        f"the handler ran for {now - view.started:.1f} s, past its time limit of "
        f"{view.limit - view.started:g} s; its process was ended"
    )
    stack = stack_of(stacks, view.slot)
    text = f"{problem}. It was at (most recent call first):\n{stack}" if stack else problem
    return text[:_MAX_CHARACTERS]


def ending_of(code: int) -> str:
    """An exit code in words: 'was ended by signal 11 (SIGSEGV)'."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-code} ({name})"
