"""Tasks: functions that can be called now or sent to be called later."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from qworker.app.definition import Definition
from qworker.app.sender import Sender
from qworker.engine.options import SendOptions

if TYPE_CHECKING:
    from qworker.app.definition import TaskApp
    from qworker.app.options import TaskOptions

__all__ = ["BatchTask", "Task"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Task(Definition[P, R], Sender[P, R]):
    """A function registered with an app. Calling it runs the function here and now."""

    def __init__(
        self, app: TaskApp, function: Callable[P, R], name: str, options: TaskOptions
    ) -> None:
        # Without the function's attributes: one called `name` or `send` would replace the task's.
        update_wrapper(self, function, updated=())
        Definition.__init__(self, app, function, name, options)
        Sender.__init__(self, self, self.default_options)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def options(self, **given: object) -> Sender[P, R]:
        """Return a sender with other `SendOptions`, by name, over those of the task. Raises `InvalidOptionError`."""
        return Sender(self, SendOptions.of(self.default_options, given))


class BatchTask(Task[[T], R]):
    """A task whose handler takes a list: you send single items, workers call it with many at a time."""

    def __call__(self, items: list[T], /) -> R:  # type: ignore[override]  # sent and called differently
        """Call the function directly with these items, without a queue."""
        return self.function(items)  # type: ignore[arg-type]  # `function` is typed by what is sent
