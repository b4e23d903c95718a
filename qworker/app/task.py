"""Tasks: functions that can be called now or sent to be called later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from qworker.app.arguments.binding import Signature
from qworker.app.functions import is_async, wraps_async
from qworker.app.trace import outgoing
from qworker.client.send import new_message
from qworker.durations import Duration
from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError
from qworker.wire.names import check_task

if TYPE_CHECKING:
    from qworker.app.middleware import Middleware
    from qworker.app.options import TaskOptions
    from qworker.client.queue import AsyncQueue, Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["BatchTask", "Call", "Sender", "Task"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskApp(Protocol):
    """The part of an app that its tasks use."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Hooks around every send and handler."""

    def queue(self, name: str) -> Queue:
        """Return a queue by its name."""

    def aqueue(self, name: str) -> AsyncQueue:
        """Return a queue of the running event loop by its name."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a task with checked arguments, ready to send."""

    sender: Sender[Any, Any]
    body: bytes


class Sender(Generic[P, R]):
    """Sends calls of a task with fixed options."""

    def __init__(self, task: Task[P, R], options: SendOptions) -> None:
        self.task = task
        self._options = options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Make a call for `send_many`. Raises `ArgumentsError` or `InvalidBodyError` for wrong arguments."""
        return Call(self, self.task.signature.encode(args, kwargs))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call and return the message id.

        Raises `ArgumentsError` or `InvalidBodyError` before anything is sent, and all that `Queue.send` raises.
        """
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.queue(self.task.queue)
        message = self._message(body, queue.ref, outgoing())
        return queue.store([message], self._options, named="calls")[0]

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call from async code, as `send` does."""
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.aqueue(self.task.queue)
        message = self._message(body, queue.ref, outgoing())
        return (await queue.store([message], self._options, named="calls"))[0]

    def send_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call that becomes ready after `delay`, and return the message id."""
        return Sender(self.task, SendOptions.of(self._options, {"delay": delay})).send(
            *args, **kwargs
        )

    async def asend_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a delayed call from async code, as `send_later` does."""
        return await Sender(self.task, SendOptions.of(self._options, {"delay": delay})).asend(
            *args, **kwargs
        )

    def send_many(self, calls: Iterable[Call]) -> list[str]:
        """Send calls in atomic chunks of up to 1,000, and return their message ids in order."""
        queue = self.task.app.queue(self.task.queue)
        messages = self._messages(calls, queue.ref)
        return queue.store(messages, self._options, named="calls")

    async def asend_many(self, calls: Iterable[Call]) -> list[str]:
        """Send calls from async code, as `send_many` does."""
        queue = self.task.app.aqueue(self.task.queue)
        messages = self._messages(calls, queue.ref)
        return await queue.store(messages, self._options, named="calls")

    def _messages(self, calls: Iterable[Call], queue: QueueRef) -> list[NewMessage]:
        messages = []
        trace = outgoing()
        for call in calls:
            if call.sender.task is not self.task:
                raise InvalidOptionError(
                    "calls",
                    f"include a call of task {call.sender.task.name!r}",
                    f"send only calls of {self.task.name!r}",
                )
            messages.append(self._message(call.body, queue, trace))
        return messages

    def _message(self, body: bytes, queue: QueueRef, trace: str | None) -> NewMessage:
        return new_message(
            queue,
            body,
            self._options,
            flags={"w": trace} if trace else None,
            sending=self._run_middleware if self.task.app.middleware else None,
        )

    def _run_middleware(self, body: bytes, flags: dict[str, str]) -> None:
        for middleware in self.task.app.middleware:
            middleware.sending(self.task.name, body, flags)


class Task(Sender[P, R]):
    """A function registered with an app. Calling it runs the function here and now."""

    def __init__(
        self, app: TaskApp, function: Callable[P, R], name: str, options: TaskOptions
    ) -> None:
        # Without the function's attributes: one called `name` or `send` would replace the task's.
        update_wrapper(self, function, updated=())
        self.app = app
        self.name = check_task(name)
        self.function = function
        self.task_options = options
        self.signature = Signature(function, name, batch=options.batch is not None)
        #: Whether calls are awaited. For a plain function around a coroutine function, the first call tells (`Runner`).
        self.is_async = is_async(function)
        self.wraps_async = wraps_async(function)
        super().__init__(
            self,
            SendOptions(
                priority=options.priority, ttl=options.ttl, max_receives=options.max_receives
            ),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a queue."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    @property
    def default_options(self) -> SendOptions:
        """The send options that the task was declared with."""
        return self._options

    @property
    def queue(self) -> str:
        """The queue that calls are sent to."""
        return self.task_options.queue

    def options(self, **given: object) -> Sender[P, R]:
        """Return a sender with other `SendOptions`, by name, over those of the task. Raises `InvalidOptionError`."""
        return Sender(self, SendOptions.of(self._options, given))


class BatchTask(Task[[T], R]):
    """A task whose handler takes a list: you send single items, workers call it with many at a time."""

    def __call__(self, items: list[T], /) -> R:  # type: ignore[override]  # sent and called differently
        """Call the function directly with these items, without a queue."""
        return self.function(items)  # type: ignore[arg-type]  # `function` is typed by what is sent
