"""Where handlers run: in the broker's own thread, in threads, or on an event loop.

All take deliveries (or groups of them, for batch handlers) and put finished ones into `done`. A running slot of the
board belongs to one handler at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from qworker.consumer.batches import arun_group, run_group
from qworker.consumer.crash import named
from qworker.consumer.failure import failure_text, name_of
from qworker.consumer.runner import LOST, TIME_LIMIT

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery
    from qworker.consumer.runner import Runner

__all__ = ["Executor", "Inline", "Loop", "Threads"]

_log = structlog.get_logger(__name__)

_WATCH_S: Final = 0.05


class Executor(Protocol):
    """Runs work: deliveries, or lists of them for calls of batch handlers.

    `slots` pieces may run at a time; `done` is filled as deliveries end, and `notify` called then.
    """

    is_async: bool
    slots: int
    done: deque[Delivery]

    def submit(self, work: Sequence[Any]) -> None:
        """Take work over; returns at once, but for the inline executor."""

    def lost(self, lease_slot: int) -> None:
        """Hear that a lease is lost; async handlers of it are cancelled."""

    def stop(self) -> None:
        """Take no more; what runs is waited for by the broker."""

    def let_go(self) -> None:
        """Run nothing else in a forked copy of this process."""


class Inline:
    """Runs sync handlers one after the other in the broker's thread.

    `between` is called between two of them with the times when the last one began and ended. It returns the time from
    which on it is to be called again.
    """

    def __init__(self, runner: Runner, slot: int, between: Callable[[float, float], float]) -> None:
        self.is_async = False
        self.slots = 1
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._slot = slot
        self._between = between

    def submit(self, work: Sequence[Any]) -> None:
        """Run all of the work now."""
        runner, slot, run = self._runner, self._slot, self._runner.run
        done, append = self.done, self.done.append
        now, due = runner.clock(), 0.0
        for each in work:
            begun = now
            if isinstance(each, list):
                run_group(runner, slot, each)
                done.extend(each)
                now = runner.clock()
            else:
                now = run(slot, each, now)
                append(each)
            if now > due:
                due = self._between(begun, now)
                # It may have waited for the server, for longer than the lease of what comes next lasts.
                now = runner.clock()

    def lost(self, lease_slot: int) -> None:
        """Nothing can be done: the handler has the thread."""

    def stop(self) -> None:
        """Nothing runs between two submits."""

    def let_go(self) -> None:
        """Nothing else runs in the thread."""


class Threads:
    """Runs sync handlers on a fixed set of threads."""

    def __init__(
        self, runner: Runner, first_slot: int, slots: int, notify: Callable[[], None]
    ) -> None:
        self.is_async = False
        self.slots = slots
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._notify = notify
        self._work: SimpleQueue[Any] = SimpleQueue()
        for slot in range(first_slot, first_slot + slots):
            threading.Thread(
                target=named(Threads._run, slot),
                args=(self, slot),
                name=f"qworker-handler-{slot}",
                daemon=True,
            ).start()

    def submit(self, work: Sequence[Any]) -> None:
        """Hand the work to the threads."""
        for each in work:
            self._work.put(each)

    def lost(self, lease_slot: int) -> None:
        """Nothing can be done: a thread cannot be interrupted."""

    def stop(self) -> None:
        """End idle threads."""
        for _ in range(self.slots):
            self._work.put(None)

    def let_go(self) -> None:
        """Nothing else runs: only the thread that forks is in the copy."""

    def _run(self, slot: int) -> None:
        get, notify, runner, done = self._work.get, self._notify, self._runner, self.done
        while (work := get()) is not None:
            if isinstance(work, list):
                run_group(runner, slot, work)
                done.extend(work)
            else:
                runner.run(slot, work, runner.clock())
                done.append(work)
            notify()


class Loop:
    """Runs async handlers on an event loop in a thread of its own, `slots` at a time."""

    def __init__(
        self, runner: Runner, first_slot: int, slots: int, notify: Callable[[], None]
    ) -> None:
        self.is_async = True
        self.slots = slots
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._notify = notify
        self._first_slot = first_slot
        self._work: deque[Any] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        #: What each worker runs, None where it is idle.
        self._running: list[Any] = []
        self._stopped = False
        self._loop = _new_loop()
        threading.Thread(target=self._main, name="qworker-loop", daemon=True).start()

    def submit(self, work: Sequence[Any]) -> None:
        """Hand the work to the loop."""
        self._work.extend(work)
        self._loop.call_soon_threadsafe(self._wake)

    def lost(self, lease_slot: int) -> None:
        """Cancel the handlers of a lost lease."""
        self._loop.call_soon_threadsafe(self._cancel_lease, lease_slot)

    def stop(self) -> None:
        """Stop the loop once nothing runs."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def let_go(self) -> None:
        """Leave the loop at the next await: its other handlers run where the fork was made."""
        self._stopped = True
        self._loop.stop()

    # -- on the loop's thread ------------------------------------------------------------------

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_later(_WATCH_S, self._watch)
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
        loop.close()

    def _wake(self) -> None:
        wanted = len(self._work)
        while wanted and self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                wanted -= 1
        while wanted > 0 and len(self._workers) < self.slots:
            number = len(self._workers)
            self._running.append(None)
            worker = named(Loop._worker, self._first_slot + number)(self, number)
            self._workers.append(self._loop.create_task(worker))
            wanted -= 1

    async def _worker(self, number: int) -> None:
        work, done, busy, runner = self._work, self.done, self._running, self._runner
        slot = self._first_slot + number
        task = asyncio.current_task()
        assert task is not None
        now = runner.clock()
        while True:
            while not work:
                if done:
                    self._notify()
                await self._woken(task)
                if self._stopped:
                    return
                now = runner.clock()
            each = busy[number] = work.popleft()
            if isinstance(each, list):
                await arun_group(runner, slot, each)
                done.extend(each)
                now = runner.clock()
            else:
                now = await runner.arun(slot, each, now)
                done.append(each)
            busy[number] = None
            if task.cancelling():
                await _forget_cancellation(task)
            # Who sleeps has seen `done` empty: only what comes into it then has to wake.
            if len(done) == 1 or isinstance(each, list):
                self._notify()

    async def _woken(self, task: asyncio.Task[Any]) -> None:
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # A handler that cancels all tasks of the loop means its own.
            await _forget_cancellation(task)

    def _watch(self) -> None:
        """Cancel handlers past their limit: one timer for all."""
        now = self._runner.clock()
        for number, each in enumerate(self._running):
            first = each[0] if isinstance(each, list) else each
            if first is None or not first.limit or first.cancelled_for:
                continue
            if now > first.limit:
                self._cancel(number, TIME_LIMIT)
        self._loop.call_later(_WATCH_S, self._watch)

    def _cancel_lease(self, lease_slot: int) -> None:
        for number, each in enumerate(self._running):
            first = each[0] if isinstance(each, list) else each
            if first is not None and first.lease.slot == lease_slot:
                self._cancel(number, LOST)

    def _cancel(self, number: int, why: str) -> None:
        work = self._running[number]
        for delivery in work if isinstance(work, list) else (work,):
            delivery.cancelled_for = why
        self._workers[number].cancel()


async def _forget_cancellation(task: asyncio.Task[Any]) -> None:
    """Keep a cancellation that came as the handler ended from what comes next."""
    while task.cancelling():
        task.uncancel()
    try:
        # Before 3.13 one that was not delivered yet comes at the next await.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
