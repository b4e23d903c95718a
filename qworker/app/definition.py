"""Definitions of tasks: a function, its name and its options, which senders make calls of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Generic, ParamSpec, Protocol, TypeVar

from qworker.app.app_parts import RunApp
from qworker.app.arguments.binding import Signature
from qworker.app.arguments.results import ResultType
from qworker.app.functions import is_async, wraps_async
from qworker.engine.options import SendOptions
from qworker.wire.names import check_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.middleware import Middleware
    from qworker.app.options import TaskOptions

__all__ = ["Definition", "TaskApp"]

P = ParamSpec("P")
R = TypeVar("R")


class TaskApp(RunApp, Protocol):
    """The part of an app that its tasks use."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Hooks around every send and handler."""


class Definition(Generic[P, R]):
    """A function that an app has registered as a task."""

    #: Whether its calls are runs, see `Workflow`.
    is_run: ClassVar[bool] = False

    def __init__(
        self, app: TaskApp, function: Callable[P, R], name: str, options: TaskOptions
    ) -> None:
        self.app = app
        self.name = check_task(name)
        self.function = function
        self.task_options = options
        self.signature = Signature(function, name, batch=options.batch is not None)
        #: The type of its results; None if they are not kept.
        self.result_type = None if options.result_ms is None else ResultType(function, name)
        #: Whether calls are awaited. If a plain function wraps a coroutine function, the first call decides (`Runner`).
        self.is_async = is_async(function)
        self.wraps_async = wraps_async(function)
        #: The send options that the task was declared with.
        self.default_options = SendOptions(
            priority=options.priority, ttl=options.ttl, max_receives=options.max_receives
        )

    @property
    def queue(self) -> str:
        """The queue that calls are sent to."""
        return self.task_options.queue
