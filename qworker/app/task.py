"""Tasks: functions that can be called now or sent to be called later."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import fields
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import msgspec
from msgspec import Raw

from qworker.app.arguments.binding import Signature
from qworker.app.arguments.results import ResultType
from qworker.app.functions import is_async, wraps_async
from qworker.app.handle import Handle, check_keeps, handle_of
from qworker.app.handles import Handles
from qworker.app.schedule import Schedule, schedule_of
from qworker.app.steps import RunApp
from qworker.app.trace import outgoing
from qworker.app.work import Following, Work
from qworker.client.schedules import put_schedule, remove_schedule
from qworker.client.send import new_message
from qworker.durations import Duration
from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError, NoResultError
from qworker.wire.groups import flag_of
from qworker.wire.names import check_schedule, check_task
from qworker.wire.schedule import StoredSchedule

if TYPE_CHECKING:
    from qworker.app.middleware import Middleware
    from qworker.app.options import TaskOptions
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["BatchTask", "Call", "Sender", "Task", "Then", "check_overlap"]

#: The options of a send that the messages of a schedule take.
_SCHEDULED: Final = ("priority", "ttl", "max_receives", "group", "ordered")
#: Those that each of many calls has for itself.
_OF_EACH_CALL: Final = ("group", "ordered")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class TaskApp(RunApp, Protocol):
    """The part of an app that its tasks use."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Hooks around every send and handler."""


class Call(msgspec.Struct, Work[T_co], frozen=True):
    """A call of a task with checked arguments, ready to send; its handler returns a T."""

    sender: Sender[Any, Any]
    body: bytes
    #: Stored name of its group; '' for none.
    group: str = ""


class Then(msgspec.Struct, Following[A, T_co], frozen=True):
    """A call whose first argument, an A, is the value of the call before it; see `chain`."""

    sender: Sender[Any, Any]
    args: list[Raw]
    kwargs: dict[str, Raw]


class Sender(Generic[P, R]):
    """Sends calls of a task with fixed options."""

    #: The id of its message; None to draw one for each.
    _message_id: str | None = None

    def __init__(self, task: Task[P, R], options: SendOptions) -> None:
        self.task = task
        self._options = options
        #: How long the results of its messages are kept; None if they are not, as of a message that is acked first.
        self._keep_ms = None if options.visibility_ms == 0 else task.task_options.result_ms

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a queue."""
        return self.task.function(*args, **kwargs)

    @overload
    def call(
        self: Sender[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Call[T]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[Any]:
        """Make a call for `send_many`, `chain` and `group`.

        Raises `ArgumentsError` or `InvalidBodyError` for wrong arguments.
        """
        return Call(self, self.task.signature.encode(args, kwargs), self.group_of(args, kwargs))

    @overload
    def then(  # type: ignore[misc]  # inferred from a callable, not from a Sender
        self: Callable[Concatenate[A, Q], Coroutine[Any, Any, T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> Then[A, T]: ...
    @overload
    def then(
        self: Callable[Concatenate[A, Q], T], *args: Q.args, **kwargs: Q.kwargs
    ) -> Then[A, T]: ...
    def then(self: Sender[Any, Any], *args: Any, **kwargs: Any) -> Then[Any, Any]:
        """Make a step of a `chain`: a call whose first argument is the value of the step before; `args` come after it.

        Raises `ArgumentsError` or `InvalidBodyError` for wrong arguments.
        """
        return Then(self, *self.task.signature.encode_after_first(args, kwargs))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call and return the message id.

        Raises `ArgumentsError` or `InvalidBodyError` before anything is sent, and all that `Queue.send` raises.
        """
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.queue(self.task.queue)
        message = self._message(body, queue.ref, outgoing(), group=self.group_of(args, kwargs))
        return queue.store([message], self._options, named="calls")[0]

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call from async code, as `send` does."""
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.aqueue(self.task.queue)
        message = self._message(body, queue.ref, outgoing(), group=self.group_of(args, kwargs))
        return (await queue.store([message], self._options, named="calls"))[0]

    @overload
    def start(
        self: Sender[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...
    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """Send a call and return a handle to its result, which the task must keep (`result="1h"`).

        If another message holds its unique key, the handle is that message's. Raises `NoResultError`, and all that
        `send` raises.
        """
        self.check_keeps()
        return Handle(self.task.app, self.task.queue, self.send(*args, **kwargs), self.task)

    @overload
    async def astart(
        self: Sender[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...
    @overload
    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """Start a call from async code, as `start` does."""
        self.check_keeps()
        return Handle(self.task.app, self.task.queue, await self.asend(*args, **kwargs), self.task)

    @overload
    def handle(
        self: Sender[P, Coroutine[Any, Any, T]], message: str | Handle[Any], /
    ) -> Handle[T]: ...
    @overload
    def handle(self, message: str | Handle[Any], /) -> Handle[R]: ...
    def handle(self, message: str | Handle[Any], /) -> Handle[Any]:
        """Return a handle to an earlier call, by its message id or by a handle of `app.handle`.

        Raises `NoResultError` for a task that keeps no results, `WrongNamespaceError` and `InvalidNameError`.
        """
        return handle_of(self.task.app, self.task, message)

    def send_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a call that becomes ready after `delay`, and return the message id."""
        return self._delayed(delay).send(*args, **kwargs)

    async def asend_later(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a delayed call from async code, as `send_later` does."""
        return await self._delayed(delay).asend(*args, **kwargs)

    def _delayed(self, delay: Duration) -> Sender[P, R]:
        return Sender(self.task, SendOptions.of(self._options, {"delay": delay}))

    def send_many(self, calls: Iterable[Call[Any]]) -> list[str]:
        """Send calls in atomic chunks of up to 1,000, and return their message ids in order."""
        queue = self.task.app.queue(self.task.queue)
        messages = self._messages(calls, queue.ref)
        return queue.store(messages, self._options, named="calls")

    async def asend_many(self, calls: Iterable[Call[Any]]) -> list[str]:
        """Send calls from async code, as `send_many` does."""
        queue = self.task.app.aqueue(self.task.queue)
        messages = self._messages(calls, queue.ref)
        return await queue.store(messages, self._options, named="calls")

    def start_many(self, calls: Iterable[Call[T]]) -> Handles[T]:
        """Send calls as `send_many` does, and return handles to their results, in order.

        `handles.results("1m")` waits for all of them. Raises `NoResultError`, and all that `send_many` raises.
        """
        self.check_keeps()
        return self._handles(self.send_many(calls))

    async def astart_many(self, calls: Iterable[Call[T]]) -> Handles[T]:
        """Start calls from async code, as `start_many` does."""
        self.check_keeps()
        return self._handles(await self.asend_many(calls))

    def _handles(self, ids: Iterable[str]) -> Handles[Any]:
        task = self.task
        return Handles(Handle(task.app, task.queue, message_id, task) for message_id in ids)

    def schedule(
        self, name: str, when: Schedule | str, /, *args: P.args, **kwargs: P.kwargs
    ) -> bool:
        """Send a call on a schedule from now on: add it, or change the one of this name in the task's queue.

        For schedules that come and go at run time (a report per customer); those of your code are declared by
        `@app.schedule`. It belongs to no app and fires until `unschedule` or `qworker schedule rm`. Reapers notice
        within five seconds. Returns False if nothing changed. Of the options, priority, ttl, max_receives, group and
        ordered count.

        Raises `ArgumentsError`, `InvalidBodyError`, `InvalidNameError` and `InvalidOptionError`.
        """
        stored = self._scheduled(name, schedule_of(when), args, kwargs)
        queue = self.task.app.queue(self.task.queue)
        return queue.client.run(put_schedule(queue.ref, name, stored))

    async def aschedule(
        self, name: str, when: Schedule | str, /, *args: P.args, **kwargs: P.kwargs
    ) -> bool:
        """Send a call on a schedule from now on, as `schedule` does."""
        stored = self._scheduled(name, schedule_of(when), args, kwargs)
        queue = self.task.app.aqueue(self.task.queue)
        return await queue.client.run(put_schedule(queue.ref, name, stored))

    def unschedule(self, name: str) -> bool:
        """Remove a schedule that `schedule` added; returns whether there was one.

        Messages that it has sent stay. Raises `InvalidNameError`, also for a schedule of an app's code.
        """
        queue = self.task.app.queue(self.task.queue)
        return queue.client.run(remove_schedule(queue.ref, name))

    async def aunschedule(self, name: str) -> bool:
        """Remove a schedule, as `unschedule` does."""
        queue = self.task.app.aqueue(self.task.queue)
        return await queue.client.run(remove_schedule(queue.ref, name))

    def _scheduled(
        self, name: str, when: Schedule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StoredSchedule:
        options, task = self._options, self.task
        check_schedule(name)
        for field in fields(SendOptions):
            if (
                field.init
                and field.name not in _SCHEDULED
                and field.default != getattr(options, field.name)
            ):
                raise InvalidOptionError(
                    field.name,
                    "is set for a schedule",
                    f"its messages take {', '.join(_SCHEDULED)}; leave it out",
                )
        check_overlap(when, task)
        keyring = task.app.keyring
        if keyring.encrypts and (args or kwargs):
            raise InvalidOptionError(
                "schedule",
                "has arguments, which are stored unencrypted",
                "let it send a task without arguments, which looks up the work to do",
            )
        body = task.signature.encode(args, kwargs)
        return StoredSchedule(
            app="",
            spec=when.spec,
            task=task.name,
            queue=task.queue,
            body=body.decode(),
            priority=options.priority,
            ttl_ms=options.ttl_ms,
            max_receives=options.max_receives,
            group=self.group_of(args, kwargs),
            signature=keyring.sign_schedule(task.app.namespace, task.queue, name, body),
        )

    def _messages(self, calls: Iterable[Call[Any]], queue: QueueRef) -> list[NewMessage]:
        messages = []
        trace = outgoing()
        for call in calls:
            if call.sender.task is not self.task:
                raise InvalidOptionError(
                    "calls",
                    f"include a call of task {call.sender.task.name!r}",
                    f"send only calls of {self.task.name!r}",
                )
            if call.sender is not self.task and call.sender is not self:
                self._check_alike(call.sender.options_of_sends)
            messages.append(self._message(call.body, queue, trace, group=call.group))
        return messages

    def _check_alike(self, own: SendOptions) -> None:
        """Raise `InvalidOptionError` if a call was made with an option that many calls share."""
        for field in fields(SendOptions):
            value = getattr(own, field.name)
            common = (getattr(self._options, field.name), getattr(self.task._options, field.name))
            if field.init and field.name not in _OF_EACH_CALL and value not in common:
                raise InvalidOptionError(
                    "calls",
                    f"include one with {field.name}={value!r}, and many calls share their options",
                    f"give it to all, `task.options({field.name}=…).send_many(calls)`, or send that call alone",
                )

    def first_message(self, body: bytes, queue: QueueRef, chain: str, group: str) -> NewMessage:
        """Make the first message of a chain; `chain` is its flag j."""
        flags = {**_flags(outgoing(), None, run=False), "j": chain}
        return self._message(body, queue, None, flags, group=group)

    def group_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the stored name of the group of a call; options of the send go before those of the task."""
        options = self.task.task_options
        if self._options.group is not None:
            return flag_of(self._options.group, self._options.ordered)
        if options.group is None:
            return ""
        return options.group_of(self.task.name, args, kwargs)

    def _message(
        self,
        body: bytes,
        queue: QueueRef,
        trace: str | None,
        flags: dict[str, str] | None = None,
        *,
        group: str = "",
    ) -> NewMessage:
        keep_ms = self._keep_ms
        if flags is None and (trace or keep_ms):
            flags = _flags(trace, keep_ms, run=self.task.is_run)
        return new_message(
            queue,
            body,
            self._options,
            flags=flags,
            sending=self._run_middleware if self.task.app.middleware else None,
            message_id=self._message_id,
            group=group,
        )

    @property
    def options_of_sends(self) -> SendOptions:
        """The options that its calls are sent with."""
        return self._options

    def check_keeps(self) -> None:
        """Raise `NoResultError` if results of its messages are not kept."""
        check_keeps(self.task)
        if self._keep_ms is None:
            raise NoResultError(
                "visibility",
                "is 0: the message is acked before it runs",
                "a result is kept by the ack; leave visibility out, or call send",
            )

    def _run_middleware(self, body: bytes, flags: dict[str, str]) -> None:
        for middleware in self.task.app.middleware:
            middleware.sending(self.task.name, body, flags)


def check_overlap(schedule: Schedule, task: Task[..., Any]) -> None:
    """Raise `InvalidOptionError` if the policy of a schedule cannot hold for its task."""
    if schedule.overlap != "allow" and task.task_options.at_most_once:
        raise InvalidOptionError(
            "overlap",
            f"is {schedule.overlap!r} on a schedule of {task.name!r}, which is at_most_once",
            "its messages end before the handler starts, so none is seen to run; leave one of them out",
        )


def _flags(trace: str | None, keep_ms: int | None, *, run: bool) -> dict[str, str]:
    flags = {"w": trace} if trace else {}
    if keep_ms is not None:
        flags["r"] = str(keep_ms)
        if run:
            flags["c"] = "1"
    return flags


class Task(Sender[P, R]):
    """A function registered with an app. Calling it runs the function here and now."""

    #: Whether its calls are runs, see `Workflow`.
    is_run: ClassVar[bool] = False

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
        #: The type of its results; None if they are not kept.
        self.result_type = None if options.result_ms is None else ResultType(function, name)
        #: Whether calls are awaited. If a plain function wraps a coroutine function, the first call decides (`Runner`).
        self.is_async = is_async(function)
        self.wraps_async = wraps_async(function)
        super().__init__(
            self,
            SendOptions(
                priority=options.priority, ttl=options.ttl, max_receives=options.max_receives
            ),
        )

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
