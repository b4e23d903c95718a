"""Where handlers run: in the broker's own thread, in threads, or on an event loop.

All take deliveries (or groups of them, for batch handlers) and put finished ones into `done`. A running slot of the
board belongs to one handler at a time.

Every handler runs in the context that the app was imported in: what one binds to context variables (structlog's fields
among them) is not seen by the next. Plain functions get a copy of it each, which costs less than a tenth of a
microsecond. Coroutines share that of a worker on the loop, which makes room for a new one as soon as a handler has left
something in it: a task for each message would cost two.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from qworker.app.context import running
from qworker.consumer.batches import arun_group, run_group
from qworker.consumer.crash import named
from qworker.consumer.failure import failure_text, name_of
from qworker.consumer.runner import CANCELLED, LOST, TIME_LIMIT
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery
    from qworker.consumer.runner import Runner

__all__ = ["Executor", "Inline", "Loop", "Threads"]

_log = guarded(__name__)

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

    def coroutines(self) -> list[tuple[int, Any]]:
        """Slots of handlers that may wait on an event loop, and their coroutines. From any thread."""


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
        try:
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
                    running.set(None)
                    due = self._between(begun, now)
                    # It may have waited for the server, for longer than the lease of what comes next lasts.
                    now = runner.clock()
        finally:
            running.set(None)

    def lost(self, lease_slot: int) -> None:
        """Nothing can be done: the handler has the thread."""

    def stop(self) -> None:
        """Nothing runs between two submits."""
        self._runner.awaiter.close()

    def let_go(self) -> None:
        """Nothing else runs in the thread."""

    def coroutines(self) -> list[tuple[int, Any]]:
        """None: handlers have threads."""
        return []


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
        #: Work, and a word for each piece of it: a thread that waits holds nothing that could be lost with its wait.
        self._work: deque[Any] = deque()
        self._words: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        for slot in range(first_slot, first_slot + slots):
            threading.Thread(
                # A thread of its own begins with an empty context.
                target=copy_context().run,
                args=(named(Threads._run, slot), self, slot),
                name=f"qworker-handler-{slot}",
                daemon=True,
            ).start()

    def submit(self, work: Sequence[Any]) -> None:
        """Hand the work to the threads."""
        self._work.extend(work)
        for _ in work:
            self._words.put(None)

    def lost(self, lease_slot: int) -> None:
        """Nothing can be done: a thread cannot be interrupted."""

    def stop(self) -> None:
        """End idle threads."""
        self._stopped = True
        for _ in range(self.slots):
            self._words.put(None)
        self._runner.awaiter.close()

    def let_go(self) -> None:
        """Nothing else runs: only the thread that forks is in the copy."""

    def coroutines(self) -> list[tuple[int, Any]]:
        """None: handlers have threads."""
        return []

    def _run(self, slot: int) -> None:
        while not self._stopped:
            work: list[Any] = []
            try:
                self._run_work(slot, work)
            except BaseException as error:  # noqa: BLE001
                # Thrown into this thread from outside: a time-out of some library, whose handler has ended.
                _log.error(
                    "handler_slot_broken", error=name_of(error), exception=failure_text(error)
                )
                if work and not _first(work[0]).started:
                    self._work.appendleft(work.pop())
                self._words.put(None)  # it may have been taken; one too many does no harm
                self.done.extend(_rescue(self._runner, slot, work, error))
                self._notify()

    def _run_work(self, slot: int, mine: list[Any]) -> None:
        """Run what comes until the end; `mine` holds what is run."""
        wait, take, notify, runner = self._words.get, self._work.popleft, self._notify, self._runner
        done = self.done
        while True:
            wait()
            try:
                mine.append(take())
            except IndexError:
                if self._stopped:
                    return
                continue
            work = mine[0]
            if isinstance(work, list):
                run_group(runner, slot, work)
                done.extend(work)
            else:
                runner.run(slot, work, runner.clock())
                done.append(work)
            mine.clear()
            running.set(None)
            notify()


def _first(work: Any) -> Delivery:
    first: Delivery = work[0] if isinstance(work, list) else work
    return first


def _rescue(runner: Runner, slot: int, works: list[Any], error: BaseException) -> list[Delivery]:
    """End what was in a slot when something was raised there that its handler has not raised; returns what had not
    ended.
    """
    ended = []
    for work in works:
        for delivery in work if isinstance(work, list) else [work]:
            if not delivery.kind:
                runner.lose(delivery, error)
                ended.append(delivery)
        runner.board.end(slot)
    return ended


class Loop:
    """Runs async handlers on an event loop in a thread of its own, `slots` at a time; `kind`: see `RunOptions.loop`."""

    def __init__(
        self,
        runner: Runner,
        first_slot: int,
        slots: int,
        notify: Callable[[], None],
        *,
        kind: str = "auto",
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
        self._loop = _new_loop(kind)
        #: What a worker's context holds before its first handler.
        self._clean = copy_context()
        runner.awaiter.share(self._loop)
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

    def coroutines(self) -> list[tuple[int, Any]]:
        """The coroutines of its workers that run handlers."""
        busy = zip([*self._running], [*self._workers], strict=False)
        return [
            (self._first_slot + number, task.get_coro())
            for number, (work, task) in enumerate(busy)
            if work is not None
        ]

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
            self._running.append(None)
            self._workers.append(self._begin_worker(len(self._workers)))
            wanted -= 1

    def _begin_worker(self, number: int) -> asyncio.Task[None]:
        worker = named(Loop._worker, self._first_slot + number)(self, number)
        return self._loop.create_task(worker, context=self._clean.copy())

    async def _worker(self, number: int) -> None:
        """Run what comes until the loop stops, or until a handler has left something in the context."""
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
            is_group = type(each) is list
            running.set(None if is_group else each)
            before = copy_context()
            try:
                if is_group:
                    await arun_group(runner, slot, each)
                    now = runner.clock()
                else:
                    now = await runner.arun(slot, each, now)
            except BaseException as error:  # noqa: BLE001 - thrown in from outside, when the handler had ended
                _log.error("handler_slot_broken", error=name_of(error))
                _rescue(runner, slot, [each], error)
            if is_group:
                done.extend(each)
            else:
                done.append(each)
            busy[number] = None
            if task.cancelling():
                await _forget_cancellation(task)
            # Who sleeps has seen `done` empty: only what comes into it then has to wake.
            if is_group or len(done) == 1:
                self._notify()
            try:
                if copy_context() == before:
                    continue
            except BaseException as error:  # noqa: BLE001 - values of the user's compare as they like
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

    def _watch(self) -> None:
        """Cancel handlers past their limit, and what an operator wants to end: one timer for all."""
        now = self._runner.clock()
        if (wanted := self._runner.board.orders.take_cancel()) is not None:
            self._cancel_message(*wanted)
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

    def _cancel_message(self, lease_slot: int, place: int, lease_id: str) -> None:
        for number, each in enumerate(self._running):
            # What is one of a batch is not cancelled alone.
            if each is None or isinstance(each, list) or each.cancelled_for:
                continue
            lease = each.lease
            if (lease.slot, each.place, lease.id) == (lease_slot, place, lease_id):
                self._cancel(number, CANCELLED)

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


def _new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Make an event loop: `asyncio`, `uvloop`, or `auto`, which is uvloop where that is installed."""
    if kind == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        if kind == "uvloop":
            raise
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
