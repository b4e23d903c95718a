"""Handles to messages, and waits for their results."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qworker.client.cancel_message import Cancellation
from qworker.client.results.feed import aread_feed, read_feed
from qworker.client.results.wait import Awaited, Gone, await_result, wait_for_result
from qworker.durations import Duration, duration_ms
from qworker.errors import (
    InvalidBodyError,
    NoResultError,
    ResultError,
    ResultTimeoutError,
    ResultUnknownError,
    TaskEndedError,
    TaskFailedError,
    WrongNamespaceError,
    shown,
)
from qworker.wire.codec import decode
from qworker.wire.feed import FeedEntry, check_position
from qworker.wire.names import check_message_id, check_queue
from qworker.wire.result import ENDS, Outcome

if TYPE_CHECKING:
    from qworker.app.app_parts import HandleApp
    from qworker.app.arguments.results import ResultType
    from qworker.client.inspect.runs import RunStatus, RunStep
    from qworker.client.results.searching import Searches

__all__ = ["Handle", "aresult_within", "check_keeps", "handle_of", "result_within"]

R = TypeVar("R")


class ResultTask(Protocol):
    """The part of a task that handles use."""

    @property
    def name(self) -> str:
        """The name of the task."""

    @property
    def queue(self) -> str:
        """The queue that calls are sent to."""

    @property
    def result_type(self) -> ResultType | None:
        """The type of its results; None if they are not kept."""


class Handle(Generic[R]):
    """A message and its result: `handle.result("30s")`, or `await handle` in async code.

    You may keep its `queue` and `id` anywhere, and make a handle from them again with `task.handle(id)` or
    `app.handle(queue, id)`: the latter returns plain JSON. Thread-safe.
    """

    __slots__ = ("_app", "_chain", "_sent_at", "_task", "id", "queue")

    def __init__(
        self,
        app: HandleApp,
        queue: str,
        message_id: str,
        task: ResultTask | None = None,
        *,
        chain: tuple[str, ...] = (),
        sent: bool = False,
    ) -> None:
        # A wait for what has just been sent does not begin with a search.
        self._sent_at = time.monotonic() if sent else None
        # The last message of a chain is sent after the others have ended, which are in these queues.
        self._chain = chain
        self._app = app
        self._task = task
        self.queue = check_queue(queue)
        self.id = check_message_id(message_id)

    def __repr__(self) -> str:
        return f"Handle({self._app.namespace!r}, {self.queue!r}, {self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self._named() == other._named()

    def __hash__(self) -> int:
        return hash(self._named())

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            "a handle cannot be pickled; send its queue and id, and call app.handle(queue, id) there"
        )

    @property
    def namespace(self) -> str:
        """The namespace of its queue."""
        return self._app.namespace

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the message has ended, and return what its handler returned.

        `timeout`: 0 does not wait, None waits until it has ended. A message that fails and is retried has not ended.

        Raises `TaskFailedError` once it is a dead letter, `TaskEndedError` if it was cancelled, discarded, purged or
        expired, `ResultTimeoutError` if it has not ended in time, and `ResultUnknownError` if it is gone without a
        result, which is checked in queues of up to 1,000 messages: at the timeout, and in longer waits after 30 s or
        some minutes; unless this handle has just been started, in queues of up to 100 messages also after a second or
        two. `InvalidResultError` for a value that is not of the declared type, `ProtectionError` for one that was
        changed, and `ServerError` if the server does not answer until 1 s after the timeout.
        """
        return result_within(self, _seconds(timeout))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait in async code, as `result` does."""
        return await aresult_within(self, _seconds(timeout))

    def signal(self, value: object, *, name: str | None = None, replace: bool = False) -> None:
        """Give a run a signal: the run continues if it waits for it. The name defaults to that of the value's type.

        `replace`: if the run is dead, this value takes the place of one that was given before; redrive the run then.
        Raises `SignalGivenError`, `RunEndedError`, `RunUnknownError`, `RunTooLargeError`, and `InvalidBodyError`, also
        for a dataclass or Struct whose fields do not have their declared types.
        """
        name = name or type(value).__name__
        self._app.queue(self.queue).signal(self.id, name, value, replace=replace)

    async def asignal(
        self, value: object, *, name: str | None = None, replace: bool = False
    ) -> None:
        """Give a run a signal in async code, as `signal` does."""
        name, queue = name or type(value).__name__, self._app.aqueue(self.queue)
        await queue.signal(self.id, name, value, replace=replace)

    def feed(self, after: str = "", timeout: Duration | None = None) -> Iterator[FeedEntry]:
        """Yield what its handler appends to its feed, until the message has ended; `after`: the entry to resume from.

        At most the 1,000 newest entries. Raises `ResultTimeoutError` if none comes for `timeout`, `InvalidOptionError`,
        `ProtectionError`, and `ServerError`.
        """
        position, seconds = check_position(after), _seconds(timeout)
        queue = self._app.queue(self.queue)
        return read_feed(queue, self._awaited, position, seconds)

    def afeed(self, after: str = "", timeout: Duration | None = None) -> AsyncIterator[FeedEntry]:
        """Yield in async code what its handler appends, as `feed` does: `async for entry in handle.afeed(last_id)`."""
        position, seconds = check_position(after), _seconds(timeout)
        queue = self._app.aqueue(self.queue)
        return aread_feed(queue, self._awaited, position, seconds)

    def status(self) -> RunStatus | None:
        """Return where a run stands: what it sleeps or waits for, and since when; None if it is unknown.

        O(n) of its queue, unless it sleeps, waits or has ended. Raises `ServerError`.
        """
        return self._app.queue(self.queue).run_status(self.id)

    async def astatus(self) -> RunStatus | None:
        """Return where a run stands in async code, as `status` does."""
        return await self._app.aqueue(self.queue).run_status(self.id)

    def steps(self) -> list[RunStep] | None:
        """Read what a run has recorded, oldest first; None if nothing is kept. Raises `ServerError`."""
        return self._app.queue(self.queue).run_steps(self.id)

    async def asteps(self) -> list[RunStep] | None:
        """Read what a run has recorded in async code, as `steps` does."""
        return await self._app.aqueue(self.queue).run_steps(self.id)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    def cancel(self, *, calls: bool = False) -> Cancellation:
        """Cancel the message: it does not run, or its handler is asked to stop; the answer says which, or too late.

        For a chain, cancels the step that waits or runs, and no later one is sent; for a group of calls that has not
        ended, its calls. `calls`: also those that a run gathers. See `Cancellation`. A wait for its result ends with
        `TaskEndedError` once it has. Raises `ServerError`.
        """
        return self._app.queue(self.queue).cancel(self.id, calls=calls, queues=self._chain)

    async def acancel(self, *, calls: bool = False) -> Cancellation:
        """Cancel in async code, as `cancel` does."""
        return await self._app.aqueue(self.queue).cancel(self.id, calls=calls, queues=self._chain)

    def _value(self, outcome: Outcome | Gone | None, seconds: float | None) -> R:
        if outcome is None:
            raise ResultTimeoutError(self.queue, self.id, seconds or 0.0)
        if isinstance(outcome, Gone):
            raise ResultUnknownError(self.queue, self.id)
        if outcome.state == "ok":
            if self._task is None or self._task.result_type is None:
                value: R = decode(outcome.value)
            else:
                value = self._task.result_type.decode(outcome.value)
            return value
        queue, step, message_id = outcome.step or (self.queue, None, self.id)
        if outcome.state == "dead":
            reason, error, text = outcome.reason, outcome.error, outcome.text
            raise TaskFailedError(queue, message_id, reason, error, text, step)
        if outcome.state in ENDS:
            raise TaskEndedError(queue, message_id, outcome.state, step)
        raise ResultError(self.queue, self.id) from InvalidBodyError(
            "result", f"has the state {shown(outcome.state)}", "a newer version wrote it"
        )

    @property
    def _awaited(self) -> Awaited:
        return Awaited(self.id, self._chain, self._sent_at)

    def _named(self) -> tuple[str, str, str]:
        return self._app.namespace, self.queue, self.id


def result_within(handle: Handle[R], seconds: float | None, shared: Searches | None = None) -> R:
    """Wait as `Handle.result` does; `shared`: searches that waits for several handles have in common."""
    queue = handle._app.queue(handle.queue)
    return handle._value(wait_for_result(queue, handle._awaited, seconds, shared), seconds)


async def aresult_within(
    handle: Handle[R], seconds: float | None, shared: Searches | None = None
) -> R:
    """Wait in async code, as `result_within` does."""
    queue = handle._app.aqueue(handle.queue)
    return handle._value(await await_result(queue, handle._awaited, seconds, shared), seconds)


def handle_of(app: HandleApp, task: ResultTask, message: str | Handle[Any]) -> Handle[Any]:
    """Make a handle of a task's message. Raises `NoResultError`, `WrongNamespaceError` and `InvalidNameError`."""
    check_keeps(task)
    if isinstance(message, Handle):
        if message.namespace != app.namespace:
            raise WrongNamespaceError(
                "handle",
                f"is of the namespace {message.namespace!r}",
                f"the app's is {app.namespace!r}",
            )
        return Handle(app, message.queue, message.id, task)
    return Handle(app, task.queue, message, task)


def check_keeps(task: ResultTask) -> None:
    """Raise `NoResultError` for a task that keeps no results."""
    if task.result_type is None:
        raise NoResultError(
            f"task {task.name!r}",
            "keeps no results",
            'declare it with @app.task(result="1h"), or call send if you do not need its result',
        )


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_ms(timeout, "timeout") / 1000
