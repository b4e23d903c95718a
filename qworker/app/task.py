"""Tasks: functions that can be called now or sent to be called later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from qworker.app.arguments import Signature
from qworker.app.control import Retry
from qworker.app.functions import is_async, wraps_async
from qworker.app.retry import RetryPolicy
from qworker.app.trace import outgoing
from qworker.client.options import SendOptions
from qworker.client.sending import new_message
from qworker.config.fields import kinds_of, unknown_option
from qworker.config.kinds import shown
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidOptionError
from qworker.wire.names import check_queue, check_task

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.client.commands.sending import NewMessage
    from qworker.client.queue_ref import QueueRef

__all__ = [
    "TASK_OPTIONS",
    "BatchTask",
    "Call",
    "Sender",
    "Task",
    "TaskOptions",
    "unknown_task_option",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_TIME_LIMIT: Final = "15m"
_MAX_TIME_LIMIT_MS: Final = 12 * 3_600_000
#: Messages per call of a batch handler, at most.
MAX_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How the messages of a task are run. Durations in ms but for ttl; None where the queue decides.

    `time_limit_ms` None: no limit (the lease still ends after 12 h). `batch` 0: one message per call.
    """

    queue: str
    retry: RetryPolicy
    max_receives: int | None = None
    time_limit_ms: int | None = None
    ttl: Duration | None = None
    priority: int = 0
    batch: int = 0
    max_wait_ms: int = 0
    at_most_once: bool = False

    @classmethod
    def of(
        cls,
        *,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        max_receives: int | None = None,
        time_limit: Duration | None = DEFAULT_TIME_LIMIT,
        ttl: Duration | None = None,
        priority: int = 0,
        batch: int | None = None,
        max_wait: Duration = 0,
        at_most_once: bool = False,
    ) -> TaskOptions:
        """Check and convert options as they are written. Raises `InvalidOptionError`."""
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidOptionError(
                "retry",
                f"{ascii(retry)[:80]} is no retry policy",
                "write Retry.exponential('1s'), Retry.fixed(…), Retry.intervals(…) or Retry.none()",
            )
        # The same rules as for one message, so that a wrong default is told where it is written.
        checked = SendOptions(priority=priority, ttl=ttl, max_receives=max_receives)
        if batch is not None and (type(batch) is not int or not 1 <= batch <= MAX_BATCH):
            raise InvalidOptionError(
                "batch",
                f"{shown(batch)} is out of range",
                f"a number from 1 to {MAX_BATCH}, or None for a handler of one message at a time",
            )
        max_wait_ms = duration_ms(max_wait, "max_wait", maximum_ms=60_000)
        if max_wait_ms and batch is None:
            raise InvalidOptionError("max_wait", "is set without batch", "it is for batch handlers")
        return cls(
            queue=check_queue(queue),
            retry=Retry.exponential("1s", cap="10m") if retry is None else retry,
            max_receives=checked.max_receives,
            time_limit_ms=None
            if time_limit is None
            else duration_ms(
                time_limit, "time_limit", minimum_ms=10, maximum_ms=_MAX_TIME_LIMIT_MS
            ),
            ttl=checked.ttl,
            priority=checked.priority,
            batch=batch or 0,
            max_wait_ms=max_wait_ms,
            at_most_once=bool(at_most_once),
        )


#: Names of the options that `TaskOptions.of` takes.
TASK_OPTIONS: Final = tuple(inspect.signature(TaskOptions.of).parameters)
#: What other frameworks call them.
_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "attempts", "tries"), "max_receives"
    ),
    **dict.fromkeys(("timeout", "soft_time_limit", "job_timeout", "max_time"), "time_limit"),
    **dict.fromkeys(("expires", "expire", "expires_in", "max_age"), "ttl"),
    **dict.fromkeys(("backoff", "min_backoff", "retry_backoff", "autoretry_for"), "retry"),
    **dict.fromkeys(("batch_size", "max_batch"), "batch"),
    **dict.fromkeys(("acks_late", "ack_late"), "at_most_once"),
    **dict.fromkeys(("queue_name", "routing_key"), "queue"),
}


def unknown_task_option(name: str) -> InvalidOptionError:
    """Make the error for an option that no task has, with the one that is meant by it elsewhere."""
    field = f"task option {shown(name)[1:-1]}"
    if name in _ELSEWHERE:
        return InvalidOptionError(field, "is unknown", f"did you mean {_ELSEWHERE[name]}?")
    if name in kinds_of(SendOptions):
        return InvalidOptionError(
            field, "is an option of a single send", f"write task.options({name}=…).send(…)"
        )
    return unknown_option(field, name, ("name", *TASK_OPTIONS))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a task with its arguments, checked, to be sent."""

    sender: Sender[Any, Any]
    body: bytes


class Sender(Generic[P, R]):
    """Sends calls of a task with fixed options."""

    def __init__(self, task: Task[P, R], options: SendOptions) -> None:
        self.task = task
        self._options = options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Check the arguments and make a call for `send_many`. Raises `ArgumentsError`, `InvalidBodyError`."""
        return Call(self, self.task.signature.encode(args, kwargs))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call; returns the message id.

        Raises `ArgumentsError` and `InvalidBodyError` before anything is sent, and what `Queue.send` raises.
        """
        return self.send_many([self.call(*args, **kwargs)])[0]

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call from async code; returns the message id."""
        return (await self.asend_many([self.call(*args, **kwargs)]))[0]

    def send_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call that becomes ready after `delay`; returns the message id."""
        return Sender(self.task, SendOptions.of(self._options, {"delay": delay})).send(
            *args, **kwargs
        )

    async def asend_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call that becomes ready after `delay` from async code; returns the message id."""
        return await Sender(self.task, SendOptions.of(self._options, {"delay": delay})).asend(
            *args, **kwargs
        )

    def send_many(self, calls: Iterable[Call]) -> list[str]:
        """Send calls, all checked first, in atomic chunks of up to 1,000; returns their message ids in order."""
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
                    f"a call of task {call.sender.task.name!r} is among them",
                    f"only calls of {self.task.name!r}",
                )
            messages.append(
                new_message(
                    queue,
                    call.body,
                    self._options,
                    flags={"w": trace} if trace else None,
                    sending=self._tell_middleware,
                )
            )
        return messages

    def _tell_middleware(self, body: bytes, flags: dict[str, str]) -> None:
        for each in self.task.app.middleware:
            each.sending(self.task.name, body, flags)


class Task(Sender[P, R]):
    """A function registered with an app. Calling it runs the function here and now."""

    def __init__(
        self, app: QWorker, function: Callable[P, R], name: str, options: TaskOptions
    ) -> None:
        # Attributes of the function stay its own: one called `name` or `send` must not take the place of the task's.
        update_wrapper(self, function, updated=())
        self.app = app
        self.name = check_task(name)
        self.function = function
        self.task_options = options
        self.signature = Signature(function, name, batch=options.batch > 0)
        #: Calls are awaited on the event loop. Where the function is a plain one around a coroutine function, a worker
        #: learns it from the first call (see `Runner`).
        self.is_async = is_async(function)
        self.wraps_async = wraps_async(function)
        super().__init__(
            self,
            SendOptions(
                priority=options.priority, ttl=options.ttl, max_receives=options.max_receives
            ),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now; no queue has a part in it."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    @property
    def default_options(self) -> SendOptions:
        """The send options of the task itself."""
        return self._options

    @property
    def queue(self) -> str:
        """The queue that calls are sent to."""
        return self.task_options.queue

    def options(self, **given: object) -> Sender[P, R]:
        """Return a sender with other options: delay, eta, ttl, priority, unique, max_receives.

        Those not given are the task's. Raises `InvalidOptionError`.
        """
        return Sender(self, SendOptions.of(self._options, given))


class BatchTask(Task[[T], R]):
    """A task whose function takes many messages at a time: it is sent one item, and called with a list of them."""

    def __call__(self, items: list[T], /) -> R:  # type: ignore[override]  # sent and called differently
        """Run the function here and now with these items; no queue has a part in it."""
        return self.function(items)  # type: ignore[arg-type]  # `function` is typed by what is sent
