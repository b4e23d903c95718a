"""Errors of tasks and of the module that holds the app."""

from __future__ import annotations

from qworker.errors.base import QworkerError

__all__ = [
    "AppLoadError",
    "TimeLimitError",
    "UnknownTaskError",
]


class UnknownTaskError(QworkerError):
    """A message or call names a task that this app does not have."""

    def __init__(self, task: str, near: str | None = None) -> None:
        super().__init__(task, near)
        self.task, self.near = task, near

    def __str__(self) -> str:
        hint = f"; did you mean {self.near!r}?" if self.near else ""
        return f"no task is named {self.task!r}{hint}"


class TimeLimitError(QworkerError):
    """A handler ran past its time limit of `limit_s` seconds."""

    def __init__(self, task: str, limit_s: float) -> None:
        super().__init__(task, limit_s)
        self.task, self.limit_s = task, limit_s

    def __str__(self) -> str:
        return f"task {self.task!r} ran past its time limit of {self.limit_s:g} s"


class AppLoadError(QworkerError):
    """The module that holds the app cannot be imported, or holds no app."""
