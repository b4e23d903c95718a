"""How a child ended, and which of the messages that ran in it are to blame."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from qworker.consumer.board import boot_time
from qworker.consumer.counters import CRASHED, MAX_TASKS, OTHER, TIME_LIMIT
from qworker.consumer.crash import cause_of, handler_stack, last_words, slot_of
from qworker.consumer.stacks import stack_of

if TYPE_CHECKING:
    from qworker.consumer.board import Board, RunningView
    from qworker.consumer.manifest import TaskEntry

__all__ = ["Death", "death_of", "ending_of"]

_MAX_CHARACTERS: Final = 2048


@dataclass(frozen=True, slots=True)
class Death:
    """A child's end.

    `accused`: the messages to blame, as (lease slot, place) → max receives of their tasks; empty where it is not known.
    `running`: those whose handlers ran → when they began, and their tasks; `at`: when it was found dead.
    `error`: class and words for their dead letters, `errors` those of some. `outcome`: as what they are counted.
    `stack`: where it crashed, if it left word. `stopping`: it was cut off when its worker stopped, and nobody is to
    blame. `cancelled`: it was ended for these, by an operator. `idle_before`: the one before it in its place died with
    nothing started as well. `tasks`: names of its tasks → under which queue and task they are counted.
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
        """How much of the blame a message has, as (lease slot, place), that was one of so many running: 0 to 1."""
        if self.stopping or message in self.cancelled:
            return 0.0
        if self.accused:
            return float(message in self.accused)
        return 1 / running

    def error_of(self, message: tuple[int, int]) -> tuple[str, str]:
        """Class and words for a dead letter."""
        return self.errors.get(message, self.error)


def death_of(
    board: Board,
    tasks: Sequence[TaskEntry],
    code: int,
    *,
    pid: int = 0,
    overdue: Sequence[RunningView] = (),
    idle_before: bool = False,
    stopping: bool = False,
    stacks: str = "",
) -> Death:
    """Find out how a child has ended.

    `overdue` are the handlers past their time limit that it was ended for, `stacks` those of its threads at that time.
    """
    running = board.running()
    stack = last_words(board)
    ending = ending_of(code)
    errors: dict[tuple[int, int], tuple[str, str]] = {}
    at = boot_time()
    if overdue:
        guilty = list(overdue)
        error = ("TimeLimitError", "the handler ran past its time limit; its process was ended")
        errors = {
            (view.lease, view.place): ("TimeLimitError", _overdue_words(view, at, stacks))
            for view in overdue
        }
    else:
        slot = slot_of(stack)
        guilty = [view for view in running if view.slot == slot or len(running) == 1]
        cause = cause_of(stack)
        words = f"{cause}: " * bool(cause) + f"the process {ending} while the message ran"
        error = (
            "WorkerDiedError",
            f"{words}\n{handler_stack(stack)}".rstrip()[:_MAX_CHARACTERS],
        )
    accused = {
        (view.lease, view.place): tasks[view.task].max_receives
        for view in guilty
        # The slot of a batch handler stands for many messages: any of them may be the one.
        if view.task < len(tasks) and not tasks[view.task].batch
    }
    ran = {
        (view.lease, view.place): (view.started, tasks[view.task].name)
        for view in running
        if view.task < len(tasks)
    }
    named = {
        task.name: (task.queue, task.name) if number < MAX_TASKS - 1 else (OTHER, OTHER)
        for number, task in enumerate(tasks)
    }
    return Death(
        code,
        accused,
        error,
        stack,
        stopping=stopping,
        idle_before=idle_before,
        running=ran,
        at=at,
        outcome=TIME_LIMIT if overdue else CRASHED,
        errors=errors,
        tasks=named,
        pid=pid,
    )


def _overdue_words(view: RunningView, now: float, stacks: str) -> str:
    """Say of a handler past its limit what that was, and where it was when its process was ended."""
    words = (
        f"the handler ran for {now - view.started:.1f} s, past its time limit of "
        f"{view.limit - view.started:g} s; its process was ended"
    )
    where = stack_of(stacks, view.slot)
    text = f"{words}. It was at (most recent call first):\n{where}" if where else words
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
