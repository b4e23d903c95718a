"""Runs of plain workflows; see `Run`."""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
)
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from qworker.app.functions import is_async
from qworker.app.runs.base import RunBase
from qworker.app.runs.each import Each, keep_behind
from qworker.app.runs.gather import GatherPolicy
from qworker.app.work import Work
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.engine.run import recall_steps
from qworker.errors import InvalidOptionError, ResultError

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef

__all__ = ["SyncRun"]

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")


class SyncRun(RunBase):
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
        """Wait for a time, as `Run.sleep` does."""
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
        of the worker, which ends the loop between two items. Items that were done after it come again if the
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
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> list[T]: ...
    @overload
    def gather(
        self,
        calls: Iterable[Work[T]],
        /,
        *,
        return_exceptions: Literal[True],
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> list[T | ResultError]: ...
    def gather(
        self,
        calls: Iterable[Any],
        /,
        *,
        return_exceptions: bool = False,
        policy: GatherPolicy = "all",
        timeout: Duration | None = None,
        name: str = "gather",
    ) -> list[Any]:
        """Make calls side by side, on any workers, and return their values in order: the run waits without a worker.

        `calls`: up to 10,000 calls (`task.call(…)`), chains and groups, of tasks that keep results. They are sent once,
        whatever happens to the run. When all have ended, the run continues; their values are kept until it ends. Raises
        the first failure in order, `TaskFailedError` or `TaskEndedError`; with `return_exceptions` failures take the
        places of values. With policy "successes" the run also waits for dead letters, until they are redriven.
        `timeout`: calls that have not ended by then fail with `ResultTimeoutError`, which is raised first; they
        continue to run. The function ends here as in `sleep`. A second gather is numbered, as steps are.

        Raises `InvalidOptionError`, `NoResultError`, `BodyTooLargeError`, `InvalidResultError`, `ProtectionError`,
        `ServerError`, `LeaseLostError` if another worker may have the run, and `ResultUnknownError` if Redis has lost
        the values.
        """
        gather = self._gathering(calls, name, policy, timeout)
        client = self._app.queue(self._steps.keys.name).client

        def ref_of(queue: str) -> QueueRef:
            return self._app.queue(queue).ref

        return client.run(gather.returned(ref_of, raises=not return_exceptions))

    def _keep(self) -> None:
        keep_behind(self._steps, self._app.queue(self._steps.keys.name).client)

    def _sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        steps = self._steps
        if (command := steps.unread(name)) is not None:
            steps.learn(self._app.queue(steps.keys.name).client.execute(command))
        steps.sleep(name, delay_ms, signal)
