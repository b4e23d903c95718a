"""Awaits what plain functions return: the coroutine of a lambda, or of a decorator that is not async itself.

Such a function has not done its work when it returns. Its slot waits until an event loop has: that of the child's async
handlers if it has one (clients that were made for a loop are used again there), else one that is started for it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from typing import Any, Final

from qworker.consumer.failure import failure_text, name_of
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

__all__ = ["Awaiter", "NotRunError", "needs_awaiting"]

_log = guarded(__name__)

#: Results that need no further check; most handlers return None.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, list, tuple, dict, set})


class NotRunError(QworkerError):
    """A handler returned a generator, none of which was run."""


def needs_awaiting(result: object, task: str) -> bool:
    """Whether the result of a handler has to be awaited. Raises `NotRunError` for a generator."""
    if type(result) in _PLAIN:
        return False
    if inspect.isawaitable(result):
        return True
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a generator" if inspect.isgenerator(result) else "an async generator"
        raise NotRunError(
            f"task {task!r} returned {kind}, none of which was run; loop over it in the handler"
        )
    return False


class Awaiter:
    """One event loop that awaits for threads, started on first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def share(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop, which runs in another thread as long as handlers do."""
        self._loop = loop

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Return its result, or raise its error. In a copy of the caller's context."""
        finished = asyncio.run_coroutine_threadsafe(_outcome(awaitable), self._running_loop())
        result, error = finished.result()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the loop that was started here, if any."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None or self._loop is None:
                return
            loop, self._loop = self._loop, None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="qworker-awaiter", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while self._loop is loop:
            # A handler may stop the loop, and SystemExit of a task that it left behind ends it as well.
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001
                _log.error("event_loop_left", error=name_of(error), exception=failure_text(error))
        loop.close()


async def _outcome(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Await it, and return its error as a value: SystemExit raised in a task would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001 - raised again by `wait`
        return None, error
