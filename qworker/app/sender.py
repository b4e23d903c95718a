"""Calls of tasks, and their senders: a task, or a sender of it with other options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import fields
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    TypeVar,
    overload,
)

import msgspec
from msgspec import Raw

from qworker.app.call_message import CallMessages
from qworker.app.handle import Handle, handle_of
from qworker.app.handles import Handles
from qworker.app.schedule import Schedule, schedule_of
from qworker.app.task_schedule import stored_schedule
from qworker.app.trace import outgoing
from qworker.app.work import Following, Work
from qworker.client.schedules import put_schedule, remove_schedule
from qworker.durations import Duration
from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError, shown

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["Call", "Sender", "Then"]

#: Options of a send that each of many calls sets for itself.
_OF_EACH_CALL: Final = ("group", "ordered")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


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


class Sender(CallMessages[P, R]):
    """Sends calls of a task with fixed options."""

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
        return self._started(self.send(*args, **kwargs))

    @overload
    async def astart(
        self: Sender[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...
    @overload
    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """Start a call from async code, as `start` does."""
        self.check_keeps()
        return self._started(await self.asend(*args, **kwargs))

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
        return Handles(map(self._started, ids))

    def _started(self, message_id: str) -> Handle[Any]:
        return Handle(self.task.app, self.task.queue, message_id, self.task, sent=True)

    def schedule(
        self, name: str, when: Schedule | str, /, *args: P.args, **kwargs: P.kwargs
    ) -> bool:
        """Send a call on a schedule from now on: add it, or change the one of this name in the task's queue.

        For schedules that come and go at run time (a report per customer); those of your code are declared by
        `@app.schedule`. It belongs to no app and fires until `unschedule` or `qworker schedule rm`. Reapers notice
        within five seconds. Returns False if nothing changed. Of the options, priority, ttl, max_receives, group and
        ordered apply.

        Raises `ArgumentsError`, `InvalidBodyError`, `InvalidNameError` and `InvalidOptionError`.
        """
        stored = stored_schedule(self, name, schedule_of(when), args, kwargs)
        queue = self.task.app.queue(self.task.queue)
        return queue.client.run(put_schedule(queue.ref, name, stored))

    async def aschedule(
        self, name: str, when: Schedule | str, /, *args: P.args, **kwargs: P.kwargs
    ) -> bool:
        """Send a call on a schedule from now on, as `schedule` does."""
        stored = stored_schedule(self, name, schedule_of(when), args, kwargs)
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

    def _messages(self, calls: Iterable[Call[Any]], queue: QueueRef) -> list[NewMessage]:
        messages = []
        trace = outgoing()
        for call in calls:
            if not isinstance(call, Call):
                raise InvalidOptionError(
                    "calls",
                    f"include {shown(call)}, which is not a call",
                    f"make each by {self.task.name}.call(…)",
                )
            if call.sender.task is not self.task:
                raise InvalidOptionError(
                    "calls",
                    f"include a call of task {call.sender.task.name!r}",
                    f"send only calls of {self.task.name!r}",
                )
            if call.sender not in (self.task, self):
                self._check_alike(call.sender.options_of_sends)
            messages.append(self._message(call.body, queue, trace, group=call.group))
        return messages

    def _check_alike(self, own: SendOptions) -> None:
        """Raise `InvalidOptionError` if a call was made with an option that many calls share."""
        for field in fields(SendOptions):
            value = getattr(own, field.name)
            common = (
                getattr(self._options, field.name),
                getattr(self.task.default_options, field.name),
            )
            if field.init and field.name not in _OF_EACH_CALL and value not in common:
                raise InvalidOptionError(
                    "calls",
                    f"include one with {field.name}={value!r}, and many calls share their options",
                    f"give it to all, `task.options({field.name}=…).send_many(calls)`, or send that call alone",
                )
