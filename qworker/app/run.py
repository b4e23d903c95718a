"""Runs: functions whose steps and loops are recorded, so that another worker can resume them.

An async workflow gets a `Run`, a plain one a `SyncRun`; `Steps` is their common part.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, cast, overload
from weakref import WeakKeyDictionary

from qworker.app.arguments.results import ResultType
from qworker.app.each import AsyncEach, Each, check_source, keep_behind, keep_behind_async
from qworker.app.functions import default_name, is_async
from qworker.app.gather import Gather, GatherPolicy
from qworker.app.loops import Loop
from qworker.app.steps import RunApp, Steps
from qworker.app.work import Work
from qworker.client.calls import read_group
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.engine.run import recall_steps
from qworker.errors import InvalidNameError, InvalidOptionError, ResultError, shown
from qworker.wire.names import check_step_name

if TYPE_CHECKING:
    from qworker.app.definition import TaskApp

__all__ = ["Run", "SyncRun"]

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

#: By function, the type of what it returns.
_TYPES: Final[WeakKeyDictionary[Any, ResultType]] = WeakKeyDictionary()


class _Base:
    """Base of both kinds of runs."""

    def __init__(self, app: RunApp, steps: Steps) -> None:
        self._app = app
        self._steps = steps

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._steps.keys.name!r}, {self.id!r})"

    @property
    def id(self) -> str:
        """The id of the run, which is that of its message."""
        return self._steps.id

    def key(self, name: str) -> str:
        """Return a key for one call of another system, such as a payment: the same each time that the run asks for it.

        Give it to systems that do a call with a known key once: a worker may die after the call, before its step was
        recorded.
        """
        return f"{self._app.namespace}/{self._steps.keys.name}/{self.id}/{check_step_name(name)}"

    def _begin(
        self, called: Callable[..., Any] | str, args: tuple[Any, ...]
    ) -> tuple[str, Callable[..., Any], tuple[Any, ...], ResultType]:
        """Name and number a step; returns its name, function, arguments, and the type of its value."""
        name, function = None, called
        if isinstance(called, str):
            if not args:
                raise InvalidOptionError(
                    "step", "has no function", "write run.step(name, function)"
                )
            name, function, args = check_step_name(called), args[0], args[1:]
        if not callable(function):
            raise InvalidOptionError(
                "step",
                f"{shown(function)} is not a function",
                "write run.step(function, *arguments)",
            )
        if name is None:
            name = _name_of(function)
        return self._steps.begin(name), function, args, _type_of(function, name)

    def _loop(
        self, items: Any, key: Any, name: str | None, every: int, interval: Duration
    ) -> Loop[Any]:
        check_source(items, key)
        if name is None:
            try:
                name = default_name(items) if callable(items) else "each"
                check_step_name(name)
            except InvalidNameError:
                name = "each"  # a lambda
        source = items if key is not None else None
        return Loop(self._steps, check_step_name(name), every, interval, source, key)

    def _gathering(self, calls: Iterable[Any], name: str, policy: GatherPolicy) -> Gather:
        app = cast("TaskApp", self._app)
        return Gather(self._steps, app, calls, check_step_name(name), policy)


class Run(_Base):
    """A run of an async workflow: `await run.step(charge, order_id)`.

    What a step returns is recorded, and another worker that resumes the run gets it without calling the function again.
    """

    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call a function and record what it returns; if that is recorded, return it without the call.

        The step has the function's name, or the one given before it: `run.step("charge", lambda: …)`. Repeated names
        are numbered in the order of the calls. The value is JSON of up to 1 MiB, converted by the annotation of what
        the function returns. Plain functions run in a thread. An error of the function is not recorded.

        Raises `LeaseLostError` if the value is not recorded because another worker may have the run, and
        `InvalidResultError`, `RunTooLargeError`, `ProtectionError` and `ServerError`.
        """
        return self._step(*self._begin(function, args), kwargs)

    async def _step(
        self,
        step: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        result_type: ResultType,
        kwargs: dict[str, Any],
    ) -> Any:
        steps, client = self._steps, self._app.aqueue(self._steps.keys.name).client
        if (command := steps.unread(step)) is not None:
            steps.learn(await client.execute(command))
        value = steps.take(step)
        if value is None:
            began = time.monotonic()
            if is_async(function):
                result = function(*args, **kwargs)
            else:
                loop, context = asyncio.get_running_loop(), copy_context()
                result = await loop.run_in_executor(
                    None, lambda: context.run(function, *args, **kwargs)
                )
            if inspect.isawaitable(result):
                result = await result
            lasted_s = time.monotonic() - began
            stored = await client.execute(steps.record(step, result_type.encode(result), lasted_s))
            value = steps.recorded(step, stored)
        return result_type.decode(value)

    async def sleep(self, duration: Duration) -> None:
        """Do nothing for a time, which starts when the run first gets here: without a worker and without a lease.

        The function ends here by a `BaseException`, so `finally` blocks run, and starts again when the time is over.
        """
        delay_ms = duration_ms(duration, "duration", maximum_ms=MAX_DELAY_MS)
        await self._sleep(self._steps.begin("~sleep"), delay_ms)

    async def wait(
        self, signal: type[T], *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait for a signal, without a worker and without a lease: `await run.wait(Approval, timeout="7d")`.

        A signal has the name of its type, or another `name`; a run can wait for each name once. A signal that was
        given before the wait is returned at once. Raises `SignalTimeoutError` when the time is over, and
        `InvalidResultError` for a value of another type. The function ends here as in `sleep`.
        """
        wait = self._steps.begin_wait(signal, name, timeout)
        value = await self._recalled(wait.signal)
        if value is None:
            await self._sleep(wait.end, wait.delay_ms, wait.signal)
            client = self._app.aqueue(self._steps.keys.name).client
            stored = await client.execute(self._steps.record(wait.signal, b""))
            value = self._steps.recorded(wait.signal, stored)
        return wait.value(value)

    @overload
    def each(
        self,
        items: Iterable[T] | AsyncIterable[T],
        /,
        *,
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> AsyncIterator[T]: ...
    @overload
    def each(
        self,
        items: Callable[[K | None], AsyncIterable[T] | Awaitable[Iterable[T]]]
        | Callable[[K | None], Iterable[T]],
        /,
        *,
        key: Callable[[T], K],
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> AsyncIterator[T]: ...
    def each(
        self,
        items: Any,
        /,
        *,
        key: Any = None,
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> AsyncIterator[Any]:
        """Give out items to `async for`, as `SyncRun.each` does to `for`; they may come asynchronously.

        A plain function as `items` is called in a thread.
        """
        loop = self._loop(items, key, name, every, interval)
        return AsyncEach(loop, items, self._app.aqueue(self._steps.keys.name).client)

    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[False] = False,
        policy: GatherPolicy = "all",
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[True],
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[T | ResultError]]: ...
    def gather(
        self,
        calls: Iterable[Any],
        /,
        *,
        return_exceptions: bool = False,
        policy: GatherPolicy = "all",
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[Any]]:
        """Make calls side by side, and return their values in order, as `SyncRun.gather` does."""
        return self._gather(self._gathering(calls, name, policy), raises=not return_exceptions)

    async def _gather(self, gather: Gather, *, raises: bool) -> list[Any]:
        steps = self._steps
        client = self._app.aqueue(steps.keys.name).client
        if (command := steps.unread(gather.signal)) is not None:
            steps.learn(await client.execute(command))
        if not gather.members:
            return []
        if not gather.is_over:
            refs = {name: self._app.aqueue(name).ref for name in gather.queues()}
            await client.run(gather.begin(refs))
            gather.park()
        return gather.returned(
            await client.run(read_group(steps.keys, gather.group_id)), raises=raises
        )

    async def _keep(self) -> None:
        await keep_behind_async(self._steps, self._app.aqueue(self._steps.keys.name).client)

    async def _sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        steps = self._steps
        if (command := steps.unread(name)) is not None:
            steps.learn(await self._app.aqueue(steps.keys.name).client.execute(command))
        steps.sleep(name, delay_ms, signal)

    async def _recalled(self, step: str) -> bytes | None:
        steps = self._steps
        # A signal may have come since the others were read.
        client = self._app.aqueue(steps.keys.name).client
        steps.learn(await client.execute(recall_steps(steps.keys, self.id, [step])))
        return steps.take(step)


class SyncRun(_Base):
    """A run of a plain workflow: `run.step(charge, order_id)`. For one thread; see `Run`."""

    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and record what it returns, as `Run.step` does, in the calling thread."""
        step, called, args, result_type = self._begin(function, args)
        if is_async(called):
            raise InvalidOptionError(
                f"step {step}", "is an async function", "make the workflow an async def to await it"
            )
        steps, client = self._steps, self._app.queue(self._steps.keys.name).client
        if (command := steps.unread(step)) is not None:
            steps.learn(client.execute(command))
        value = steps.take(step)
        if value is None:
            began = time.monotonic()
            result = called(*args, **kwargs)
            lasted_s = time.monotonic() - began
            record = steps.record(step, result_type.encode(result), lasted_s)
            value = steps.recorded(step, client.execute(record))
        return result_type.decode(value)

    def sleep(self, duration: Duration) -> None:
        """Do nothing for a time, as `Run.sleep` does."""
        delay_ms = duration_ms(duration, "duration", maximum_ms=MAX_DELAY_MS)
        self._sleep(self._steps.begin("~sleep"), delay_ms)

    def wait(
        self, signal: type[T], *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait for a signal, as `Run.wait` does."""
        steps, client = self._steps, self._app.queue(self._steps.keys.name).client
        wait = steps.begin_wait(signal, name, timeout)
        # A signal may have come since the others were read.
        steps.learn(client.execute(recall_steps(steps.keys, self.id, [wait.signal])))
        value = steps.take(wait.signal)
        if value is None:
            self._sleep(wait.end, wait.delay_ms, wait.signal)
            stored = client.execute(steps.record(wait.signal, b""))
            value = steps.recorded(wait.signal, stored)
        return wait.value(value)

    @overload
    def each(
        self,
        items: Iterable[T],
        /,
        *,
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> Iterator[T]: ...
    @overload
    def each(
        self,
        items: Callable[[K | None], Iterable[T]],
        /,
        *,
        key: Callable[[T], K],
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> Iterator[T]: ...
    def each(
        self,
        items: Any,
        /,
        *,
        key: Any = None,
        name: str | None = None,
        every: int = 100,
        interval: Duration = "5s",
    ) -> Iterator[Any]:
        """Give out items, and continue after the last kept one if the run has to begin again.

        `items`: a sequence; another iterable, which is read again up to the position; or, with `key`, a function that
        returns the items behind a key (at first None): all of them, or a page at a time, until it returns none. `key`
        returns the key of an item, JSON of up to 4 KiB.

        The position is kept when `every` items (1-1,000,000) are done or `interval` (100 ms to a day) has passed since
        it was kept last, whichever is first; and when the function ends here: at a failure, a sleep, a wait, or a stop
        of the worker, for which the loop ends between two items. Items that were done after it come again if the
        worker dies. Steps within an item are forgotten with it. A second loop of a name is numbered, as steps are.

        Raises `SourceShrankError` if there are fewer items than before, `InvalidResultError` for a wrong key,
        `LeaseLostError` and the other errors of `step`.
        """
        loop = self._loop(items, key, name, every, interval)
        return Each(loop, items, self._app.queue(self._steps.keys.name).client)

    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[False] = False,
        policy: GatherPolicy = "all",
        name: str = "gather",
    ) -> list[T]: ...
    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[True],
        name: str = "gather",
    ) -> list[T | ResultError]: ...
    def gather(
        self,
        calls: Iterable[Any],
        /,
        *,
        return_exceptions: bool = False,
        policy: GatherPolicy = "all",
        name: str = "gather",
    ) -> list[Any]:
        """Make calls side by side, on any workers, and return their values in order: the run waits without a worker.

        `calls`: up to 10,000 calls (`task.call(…)`), chains and groups, of tasks that keep results. They are sent once,
        whatever happens to the run. When all have ended, the run continues; their values are kept until it ends. Raises
        the first failure in order, `TaskFailedError` or `TaskEndedError`; with `return_exceptions` failures stand in
        the places of values. With policy "successes" the run also waits for dead letters, until they are redriven.
        The function ends here as in `sleep`. A second gather is numbered, as steps are.

        Raises `InvalidOptionError`, `NoResultError`, `BodyTooLargeError`, `InvalidResultError`, `ProtectionError`,
        `ServerError`, and `ResultUnknownError` if Redis has lost the values.
        """
        gather = self._gathering(calls, name, policy)
        steps = self._steps
        client = self._app.queue(steps.keys.name).client
        if (command := steps.unread(gather.signal)) is not None:
            steps.learn(client.execute(command))
        if not gather.members:
            return []
        if not gather.is_over:
            refs = {name: self._app.queue(name).ref for name in gather.queues()}
            client.run(gather.begin(refs))
            gather.park()
        state = client.run(read_group(steps.keys, gather.group_id))
        return gather.returned(state, raises=not return_exceptions)

    def _keep(self) -> None:
        keep_behind(self._steps, self._app.queue(self._steps.keys.name).client)

    def _sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        steps = self._steps
        if (command := steps.unread(name)) is not None:
            steps.learn(self._app.queue(steps.keys.name).client.execute(command))
        steps.sleep(name, delay_ms, signal)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "name", None)  # a task's
    if isinstance(name, str):
        return check_step_name(name)
    try:
        return check_step_name(default_name(function))
    except InvalidNameError as error:
        raise InvalidNameError(
            "step", f"{shown(function)} has no name", 'name the step: run.step("name", function)'
        ) from error


def _type_of(function: Callable[..., Any], name: str) -> ResultType:
    function = getattr(function, "function", function)
    try:
        known = _TYPES.get(function)
        if known is None:
            known = _TYPES[function] = ResultType(function, name)
    except TypeError:  # without a hash, or no weak reference to it
        return ResultType(function, name)
    return known
