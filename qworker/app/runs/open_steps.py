"""Steps of an async workflow that have begun and not ended, in whichever coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final

from qworker.app.control import NO_END, Parked
from qworker.telemetry.guarded import guarded

__all__ = ["PARKS", "OpenSteps"]

_log = guarded(__name__)

#: What a run raises at a place where its function ends, and continues later.
PARKS: Final = (Parked, *NO_END)

#: Seconds that steps have to end when their run is parked or has failed.
_END_S: Final = 60.0
#: The steps of which the running code is part.
_within: Final[ContextVar[frozenset[asyncio.Future[None]]]] = ContextVar(
    "qworker_within", default=frozenset()
)


class OpenSteps:
    """The steps that the coroutines of one activation have begun: one that is not recorded is called again.

    What parks the run leaves an `async with` block when the others have ended: a task group cancels its other tasks
    when one of them ends by an error.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        #: The name of each, and the task in which its function runs.
        self._running: dict[asyncio.Future[None], tuple[str, asyncio.Task[Any]]] = {}
        #: Those of them that can still be recorded.
        self._open: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the other steps if the error parks the run."""
        if isinstance(error, PARKS):
            await self.end()

    def has_caller(self) -> bool:
        """Whether the running code is part of an open step, which can still be recorded."""
        return not self._open.isdisjoint(_within.get())

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Hold a step open."""
        step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None
        self._running[step] = name, task
        self._open.add(step)
        outer = _within.get()
        _within.set(outer | {step})
        try:
            yield
        finally:
            # Not by a token, which is of one context: what a loop leaves behind at its end is closed in another one.
            _within.set(outer)
            del self._running[step]
            self._close(step)

    async def end(self) -> None:
        """Wait until the steps have ended, for a minute at most.

        One that waits for something behind the place at which the function has ended would never end. Those of which
        the caller is part end with it: two that wait in this way do not wait for each other.
        """
        for step in _within.get():
            self._close(step)
        clock = asyncio.get_running_loop().time
        until = clock() + _END_S
        while self._open and (left_s := until - clock()) > 0:
            await asyncio.wait(self._open, timeout=left_s)
        for step in self._open:
            _log.warning("step_given_up", run=self._run_id, step=self._running[step][0])
        self._open.clear()

    def leave(self) -> None:
        """Cancel the steps that still run: the function has ended, and its next activation calls them again."""
        for _, task in self._running.values():
            task.cancel()

    def _close(self, step: asyncio.Future[None]) -> None:
        self._open.discard(step)
        if not step.done():
            step.set_result(None)
