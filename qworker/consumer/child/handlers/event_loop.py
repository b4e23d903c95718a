"""Runs async handlers on an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from qworker.app.context import running
from qworker.consumer.board.crash import named
from qworker.consumer.child.handlers.batch_tasks import arun_group
from qworker.consumer.child.handlers.endings import LOST, STOPPED, TIME_LIMIT
from qworker.consumer.child.handlers.executor import first_of, lose_unended
from qworker.consumer.failure import failure_text, name_of
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.handlers.executor import Between
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["HandlerLoop"]

_log = guarded(__name__)

_CHECK_S: Final = 0.05
#: How long an ending loop may take to close what its handlers have opened.
_CLOSE_S: Final = 1.0


class HandlerLoop:
    """Runs up to `slots` calls at a time, and calls `notify` as they end; `kind`: see `RunOptions.loop`.

    `close` runs at the end: it closes what handlers have opened on the loop by the app.
    """

    def __init__(
        self,
        runner: Runner,
        first_slot: int,
        slots: int,
        notify: Callable[[], None],
        *,
        kind: str = "auto",
        close: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.is_async = True
        self.slots = slots
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._notify = notify
        self._first_slot = first_slot
        self._calls: deque[Any] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        #: The call that each worker runs, None while it is idle.
        self._running: list[Any] = []
        self._stopped = False
        self._close = close
        self._thread = threading.Thread(target=self._main, name="qworker-loop", daemon=True)
        self._loop = _new_loop(kind)
        #: The context of a worker before its first handler.
        self._clean = copy_context()
        runner.awaiter.share(self._loop)

    def start(self, between: Between) -> None:
        """Start the thread of the loop."""
        self._thread.start()

    def submit(self, calls: Sequence[Any]) -> None:
        """Hand calls to the loop."""
        self._calls.extend(calls)
        self._loop.call_soon_threadsafe(self._wake)

    def cancel_lease(self, lease_slot: int) -> None:
        """Cancel the handlers of a lost lease."""
        self._loop.call_soon_threadsafe(self._cancel_lease, lease_slot)

    def stop(self) -> None:
        """Stop the loop once nothing runs."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> None:
        """Wait until the loop is closed, but not for long: what is left open then goes with the process."""
        self._thread.join(_CLOSE_S)

    def detach(self) -> None:
        """Leave the loop at the next await: its other handlers run in the process that was forked."""
        self._stopped = True
        self._loop.stop()

    def coroutines(self) -> list[tuple[int, Any]]:
        """The coroutines of workers that run handlers, by slot."""
        workers = zip([*self._running], [*self._workers], strict=False)
        return [
            (self._first_slot + number, task.get_coro())
            for number, (call, task) in enumerate(workers)
            if call is not None
        ]

    # -- on the loop's thread ------------------------------------------------------------------

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_later(_CHECK_S, self._check)
        while not self._stopped:
            # A handler may stop the loop, and SystemExit of a task that it left behind ends it as well.
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001
                _log.error("event_loop_left", error=name_of(error), exception=failure_text(error))
        for worker in self._workers:
            worker.cancel()
        ending = asyncio.gather(*self._workers, return_exceptions=True)
        while not ending.done():
            with suppress(RuntimeError):  # stopped once more, by a handler or by `stop`
                loop.run_until_complete(ending)
        if self._close is not None:
            with suppress(RuntimeError):
                loop.run_until_complete(self._close())
        loop.close()

    def _wake(self) -> None:
        wanted = len(self._calls)
        while wanted and self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                wanted -= 1
        while wanted > 0 and len(self._workers) < self.slots:
            self._running.append(None)
            self._workers.append(self._begin_worker(len(self._workers)))
            wanted -= 1

    def _begin_worker(self, number: int) -> asyncio.Task[None]:
        worker = named(HandlerLoop._worker, self._first_slot + number)(self, number)
        return self._loop.create_task(worker, context=self._clean.copy())

    async def _worker(self, number: int) -> None:
        """Run calls until the loop stops, or until a handler has left something in the context."""
        calls, done, busy, runner = self._calls, self.done, self._running, self._runner
        slot = self._first_slot + number
        task = asyncio.current_task()
        assert task is not None
        now = runner.clock()
        while True:
            while not calls:
                if done:
                    self._notify()
                await self._woken(task)
                if self._stopped:
                    return
                now = runner.clock()
            call = busy[number] = calls.popleft()
            is_group = type(call) is list
            running.set(None if is_group else call)
            before = copy_context()
            try:
                if is_group:
                    await arun_group(runner, slot, call)
                    now = runner.clock()
                else:
                    now = await runner.arun(slot, call, now)
            except BaseException as error:  # noqa: BLE001 - thrown in from outside, after the handler has ended
                _log.error("handler_slot_broken", error=name_of(error))
                lose_unended(runner, slot, [call], error)
            if is_group:
                done.extend(call)
            else:
                done.append(call)
            busy[number] = None
            if task.cancelling():
                await _forget_cancellation(task)
            # The broker sleeps only after it has found `done` empty: only the first one there has to wake it.
            if is_group or len(done) == 1:
                self._notify()
            try:
                if copy_context() == before:
                    continue
            except BaseException as error:  # noqa: BLE001 - the user's values compare as they like
                _log.debug("context_not_compared", error=name_of(error))
            if not self._stopped:
                self._workers[number] = self._begin_worker(number)
                return

    async def _woken(self, task: asyncio.Task[Any]) -> None:
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # A handler that cancels all tasks of the loop means its own.
            await _forget_cancellation(task)

    # -- cancelling, on the loop's thread ------------------------------------------------------

    def _check(self) -> None:
        """Cancel handlers past their limit, and those of cancelled messages: one timer for all."""
        now = self._runner.clock()
        some_cancelled = self._runner.board.orders.any_cancelled
        for number, call in enumerate(self._running):
            if call is None:
                continue
            first = first_of(call)
            if first.limit and not first.cancelled_for and now > first.limit:
                self._cancel(number, TIME_LIMIT)
            # A message of a batch is not cancelled alone.
            elif (
                some_cancelled
                and type(call) is not list
                and not call.cancelled_for
                and call.cancelled
            ):
                self._cancel(number, STOPPED)
        self._loop.call_later(_CHECK_S, self._check)

    def _cancel_lease(self, lease_slot: int) -> None:
        for number, call in enumerate(self._running):
            if call is not None and first_of(call).lease.slot == lease_slot:
                self._cancel(number, LOST)

    def _cancel(self, number: int, why: str) -> None:
        call = self._running[number]
        for delivery in call if isinstance(call, list) else (call,):
            delivery.cancelled_for = why
        self._workers[number].cancel()


async def _forget_cancellation(task: asyncio.Task[Any]) -> None:
    """Keep a cancellation that came as the handler ended from reaching the next one."""
    while task.cancelling():
        task.uncancel()
    try:
        # Before 3.13 one that was not delivered yet comes at the next await.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return


def _new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Make an event loop: `asyncio`, `uvloop`, or `auto`, which is uvloop if it is installed."""
    if kind == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        if kind == "uvloop":
            raise
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
