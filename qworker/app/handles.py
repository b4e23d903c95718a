"""Handles to several messages, and their results together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar, overload

from qworker.app.handle import Handle, aresult_within, result_within
from qworker.client.results.wait import searches
from qworker.durations import Duration, duration_ms
from qworker.errors import ResultError, ResultTimeoutError

__all__ = ["Handles"]

R = TypeVar("R")


class Handles(Sequence[Handle[R]], Generic[R]):
    """Handles to messages that were started together: `handles.results("1m")` waits for all of them.

    `task.start_many` returns them; `Handles([resize.start(a), scan.start(b)])` takes those of any tasks and queues.
    """

    __slots__ = ("_handles",)

    def __init__(self, handles: Iterable[Handle[R]]) -> None:
        self._handles = tuple(handles)

    def __repr__(self) -> str:
        return f"Handles({list(self._handles)!r})"

    def __len__(self) -> int:
        return len(self._handles)

    @overload
    def __getitem__(self, index: int) -> Handle[R]: ...
    @overload
    def __getitem__(self, index: slice) -> Handles[R]: ...
    def __getitem__(self, index: int | slice) -> Handle[R] | Handles[R]:
        if isinstance(index, slice):
            return Handles(self._handles[index])
        return self._handles[index]

    def results(self, timeout: Duration | None = None) -> list[R]:
        """Wait until all messages have ended, and return what their handlers returned, in order.

        `timeout` applies to all of them together. One round trip for each, and one subscription for all. Raises the
        first error, in order, that `Handle.result` would raise; see `outcomes` for the others.
        """
        return _values(self.outcomes(timeout))

    def outcomes(self, timeout: Duration | None = None) -> list[R | ResultError]:
        """Wait as `results` does, and return an error in the place of each message that has no value.

        These are `TaskFailedError`, `TaskEndedError`, `ResultUnknownError`, and after the timeout `ResultTimeoutError`.
        Raises `InvalidResultError`, `ProtectionError` and `ServerError`.
        """
        outcomes: list[R | ResultError] = []
        wait = _Wait(timeout)
        for handle in self._handles:
            try:
                value = result_within(handle, wait.left(), wait.searches)
            except ResultError as error:
                outcomes.append(wait.named(error))
            else:
                outcomes.append(value)
        return outcomes

    async def aresults(self, timeout: Duration | None = None) -> list[R]:
        """Wait in async code, as `results` does."""
        return _values(await self.aoutcomes(timeout))

    async def aoutcomes(self, timeout: Duration | None = None) -> list[R | ResultError]:
        """Wait in async code, as `outcomes` does."""
        outcomes: list[R | ResultError] = []
        wait = _Wait(timeout)
        for handle in self._handles:
            try:
                value = await aresult_within(handle, wait.left(), wait.searches)
            except ResultError as error:
                outcomes.append(wait.named(error))
            else:
                outcomes.append(value)
        return outcomes


class _Wait:
    """The time that is left of a wait for several messages; None: no limit. `searches`: those of all of them."""

    def __init__(self, timeout: Duration | None) -> None:
        self.searches = searches()
        self._seconds = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        self._end = None if self._seconds is None else time.monotonic() + self._seconds

    def left(self) -> float | None:
        """Seconds until the end; 0 after it."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def named(self, error: ResultError) -> ResultError:
        """Name the whole timeout in the error of one of the messages."""
        if isinstance(error, ResultTimeoutError) and self._seconds is not None:
            return ResultTimeoutError(error.queue, error.message_id, self._seconds)
        return error


def _values(outcomes: list[R | ResultError]) -> list[R]:
    values: list[R] = []
    for outcome in outcomes:
        if isinstance(outcome, ResultError):
            raise outcome
        values.append(outcome)
    return values
