"""How a child ended, and which of the messages that ran in it are to blame."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from qworker.consumer.board import boot_time
from qworker.consumer.crash import last_words, slot_of

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
    `error`: class and words for their dead letters. `stack`: where it crashed, if it left word. `stopping`: it was cut
    off when its worker stopped, and nobody is to blame. `cancelled`: it was ended for these, by an operator.
    `idle_before`: the one before it in its place died with nothing started as well.
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


def death_of(
    board: Board,
    tasks: Sequence[TaskEntry],
    code: int,
    *,
    overdue: Sequence[RunningView] = (),
    idle_before: bool = False,
) -> Death:
    """Find out how a child has ended; `overdue` are the handlers past their time limit that it was ended for."""
    running = board.running()
    stack = last_words(board)
    ending = ending_of(code)
    if overdue:
        guilty = list(overdue)
        error = (
            "TimeLimitError",
            "the handler ran past its time limit; its process was ended",
        )
    else:
        slot = slot_of(stack)
        guilty = [view for view in running if view.slot == slot or len(running) == 1]
        words = f"the process {ending} while the message ran\n{stack}".strip()
        error = ("WorkerDiedError", words[:_MAX_CHARACTERS])
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
    return Death(code, accused, error, stack, idle_before=idle_before, running=ran, at=boot_time())


def ending_of(code: int) -> str:
    """An exit code in words: 'was ended by signal 11 (SIGSEGV)'."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-code} ({name})"
