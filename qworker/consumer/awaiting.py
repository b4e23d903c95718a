"""Awaits what plain functions return: a lambda's coroutine, or that of a decorator which is not async itself.

Such a function has not done its work when it returns. Its slot waits until the event loop has: that of the child's
async handlers if it has one (so that clients made for a loop find it again), else one that is begun for it.
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

#: Of these a call can be done with at a glance; most handlers return None.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, list, tuple, dict, set})


class NotRunError(QworkerError):
    """A handler returned a generator: nothing of it was run."""


def needs_awaiting(result: object, task: str) -> bool:
    """Whether what a handler has returned is yet to be awaited. Raises `NotRunError` for a generator."""
    if type(result) in _PLAIN:
        return False
    if inspect.isawaitable(result):
        return True
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a generator" if inspect.isgenerator(result) else "an async generator"
        raise NotRunError(
            f"task {task!r} returned {kind}, nothing of which was run; loop over it in the handler"
        )
    return False


class Awaiter:
    """One event loop on which threads have things awaited. Begun at the first of them; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def share(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop, which runs in another thread for as long as handlers do."""
        self._loop = loop

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Return what it comes to, or raise what it raises. In a copy of the caller's context."""
        finished = asyncio.run_coroutine_threadsafe(_outcome(awaitable), self._running_loop())
        result, error = finished.result()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the loop that was begun here, if there is one."""
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
    """Await it; as a value, for SystemExit raised in a task of the loop would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
        return None, error
