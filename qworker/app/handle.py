"""Handles: what a started task will come to."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qworker.client.results.wait import Gone, await_result, wait_for_result
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
from qworker.wire.names import check_message_id, check_queue
from qworker.wire.result import ENDS, Outcome

if TYPE_CHECKING:
    from qworker.app.arguments.results import ResultType
    from qworker.client.queue import AsyncQueue, Queue

__all__ = ["Handle", "HandleApp", "check_keeps", "handle_of"]

R = TypeVar("R")


class HandleApp(Protocol):
    """The part of an app that handles use."""

    @property
    def namespace(self) -> str:
        """The namespace of its queues."""

    def queue(self, name: str) -> Queue:
        """Return a queue by its name."""

    def aqueue(self, name: str) -> AsyncQueue:
        """Return a queue of the running event loop by its name."""


class Keeper(Protocol):
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
    """A message, and what it will come to: `handle.result("30s")`, or `await handle` in async code.

    You may keep its `queue` and `id` anywhere, and make a handle of them again with `task.handle(id)` or
    `app.handle(queue, id)`: the latter returns plain JSON. Thread-safe.
    """

    __slots__ = ("_app", "_task", "id", "queue")

    def __init__(
        self, app: HandleApp, queue: str, message_id: str, task: Keeper | None = None
    ) -> None:
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

        `timeout`: 0 only looks, None waits for ever. A message that fails and is retried has not ended.

        Raises `TaskFailedError` once it is a dead letter, `TaskEndedError` if it was cancelled, discarded, purged or
        expired, `ResultTimeoutError` if it has not ended in time, and `ResultUnknownError` after the timeout if the
        queue is short (up to 1,000 messages) and no such message is in it; `InvalidResultError` for a value that is not
        of the declared type, `ProtectionError` for one that was changed, and `ServerError`.
        """
        seconds = _seconds(timeout)
        return self._value(wait_for_result(self._app.queue(self.queue), self.id, seconds), seconds)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait in async code, as `result` does."""
        seconds = _seconds(timeout)
        outcome = await await_result(self._app.aqueue(self.queue), self.id, seconds)
        return self._value(outcome, seconds)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

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
        if outcome.state == "dead":
            raise TaskFailedError(self.queue, self.id, outcome.reason, outcome.error, outcome.text)
        if outcome.state in ENDS:
            raise TaskEndedError(self.queue, self.id, outcome.state)
        raise ResultError(self.queue, self.id) from InvalidBodyError(
            "result", f"has the state {shown(outcome.state)}", "a newer version has written it"
        )

    def _named(self) -> tuple[str, str, str]:
        return self._app.namespace, self.queue, self.id


def handle_of(app: HandleApp, task: Keeper, message: str | Handle[Any]) -> Handle[Any]:
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


def check_keeps(task: Keeper) -> None:
    """Raise `NoResultError` for a task that keeps no results."""
    if task.result_type is None:
        raise NoResultError(
            f"task {task.name!r}",
            "keeps no results",
            'declare it with @app.task(result="1h"), or call send if you do not need its result',
        )


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_ms(timeout, "timeout") / 1000
