"""Runs of async workflows: functions whose steps and loops are recorded, so that another worker can resume them.

A plain workflow gets a `SyncRun`; `RunBase` is their common part.
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
)
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from qworker.app.arguments.results import ResultType
from qworker.app.functions import is_async
from qworker.app.runs.base import RunBase
from qworker.app.runs.each import AsyncEach, keep_behind_async
from qworker.app.runs.gather import GatherPolicy
from qworker.app.runs.open_steps import PARKS
from qworker.app.work import Work
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.engine.run import recall_steps
from qworker.errors import ResultError

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef

__all__ = ["Run"]

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")


class Run(RunBase):
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
        """Call a function and record what it returns; if a value is already recorded, return it without the call.

        The step has the function's name, or the one given before it: `run.step("charge", lambda: …)`. Repeated names
        are numbered in the order of the calls. The value is JSON of up to 1 MiB, converted by the annotation of what
        the function returns. Plain functions run in a thread. An error of the function is not recorded.

        Raises `LeaseLostError` if the value is not recorded because another worker may have the run, and
        `InvalidResultError`, `RunTooLargeError`, `ProtectionError` and `ServerError`.
        """
        try:
            begun = self._begin(function, args)
        except PARKS as end:
            return self._parked(end)
        return self._step(*begun, kwargs)

    async def _step(
        self,
        step: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        result_type: ResultType,
        kwargs: dict[str, Any],
    ) -> Any:
        steps, client = self._steps, self._app.aqueue(self._steps.keys.name).client
        async with steps.open:
            if (command := steps.unread(step)) is not None:
                steps.learn(await client.execute(command))
            value = steps.take(step)
            if value is None:
                steps.check()
                with steps.open.one(step):
                    began = time.monotonic()
                    result = await _called(function, args, kwargs)
                    lasted_s = time.monotonic() - began
                    record = steps.record(step, result_type.encode(result), lasted_s)
                    value = steps.recorded(step, await client.execute(record))
        return result_type.decode(value)

    async def sleep(self, duration: Duration) -> None:
        """Wait for a time, which starts when the run first gets here, without a worker and without a lease.

        The function ends here by a `BaseException`, so `finally` blocks run, and starts again when the time is over.
        """
        delay_ms = duration_ms(duration, "duration", maximum_ms=MAX_DELAY_MS)
        async with self._steps.open:
            await self._sleep(self._steps.begin("~sleep"), delay_ms)

    async def wait(
        self, signal: type[T], *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait for a signal, without a worker and without a lease: `await run.wait(Approval, timeout="7d")`.

        A signal has the name of its type, or another `name`; a run can wait for each name once. A signal that was
        given before the wait is returned at once. Raises `SignalTimeoutError` when the time is over, and
        `InvalidResultError` for a value of another type. The function ends here as in `sleep`.
        """
        async with self._steps.open:
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
        client = self._app.aqueue(self._steps.keys.name).client
        return AsyncEach(loop, items, client, self._steps.open)

    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[False] = False,
        policy: GatherPolicy = "all",
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[True],
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[T | ResultError]]: ...
    def gather(
        self,
        calls: Iterable[Any],
        /,
        *,
        return_exceptions: bool = False,
        policy: GatherPolicy = "all",
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> Coroutine[Any, Any, list[Any]]:
        """Make calls side by side, and return their values in order, as `SyncRun.gather` does."""
        try:
            gather = self._gathering(calls, name, policy, timeout)
        except PARKS as end:
            return self._parked(end)
        client = self._app.aqueue(self._steps.keys.name).client

        def ref_of(queue: str) -> QueueRef:
            return self._app.aqueue(queue).ref

        return self._gathered(client.run(gather.returned(ref_of, raises=not return_exceptions)))

    async def _gathered(self, values: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        async with self._steps.open:
            return await values

    async def _parked(self, end: BaseException) -> Any:
        async with self._steps.open:
            raise end

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


async def _called(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call the function of a step; a plain one in a thread."""
    if is_async(function):
        result = function(*args, **kwargs)
    else:
        loop, context = asyncio.get_running_loop(), copy_context()
        result = await loop.run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result
