"""Runs the handler of one delivery. Knows neither Redis nor threads nor loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qworker.app.context import running
from qworker.consumer.board.states import Mark
from qworker.consumer.child.handlers.awaiting import Awaiter, needs_awaiting
from qworker.consumer.child.handlers.ending_notes import ForkedMarks
from qworker.consumer.child.handlers.gathering import Gathering
from qworker.consumer.child.leases.ending_kinds import ACKED, DROPPED, LEFT
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.app.middleware import Middleware
    from qworker.app.task import Task
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.handlers.endings import Endings
    from qworker.consumer.child.handlers.preparation import Preparer
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Runner"]

_log = guarded(__name__)

# Plain ints: an IntEnum member costs more to look up and to store than everything else that is done with it.
_RUNNING: Final = int(Mark.RUNNING)
_DONE: Final = int(Mark.DONE)
_GONE: Final = int(Mark.GONE)
_RECALLED: Final = int(Mark.RECALLED)


class Runner:
    """Runs handlers. `numbers`: task name → its number on the board."""

    def __init__(
        self,
        tasks: dict[str, Task[..., Any]],
        numbers: dict[str, int],
        board: Board,
        middleware: Sequence[Middleware],
        endings: Endings,
        preparer: Preparer,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.tasks = tasks
        self.board = board
        self.clock = clock
        self.middleware = middleware
        self.endings = endings
        self.prepare = preparer.prepare
        self._gathering = Gathering(preparer)
        self._bytes: memoryview | ForkedMarks = board.bytes
        self._words = board.words
        self._running = board.running
        self._slot_words = [board.running.word(slot) for slot in range(board.slots)]
        #: Awaits what plain functions return. Closed by the executor of sync handlers.
        self.awaiter = Awaiter()
        #: Called when a plain function turns out to return coroutines: its calls go to the loop from then on.
        self.on_async: Callable[[], None] = lambda: None
        #: Tasks whose results were awaited, with a warning.
        self._awaited: set[str] = set()
        #: The numbers of tasks on the board.
        self.numbers: Mapping[Any, int] = {task: numbers[name] for name, task in tasks.items()}
        #: By task, its number on the board, and the time limit of its handler in seconds; 0: none.
        self._known = {
            task: (numbers[name], (task.task_options.time_limit_ms or 0) / 1000)
            for name, task in tasks.items()
        }

    def mark_running(self, delivery: Delivery, now: float) -> bool:
        """Mark a delivery as running; False if it must not start any more, and is dropped."""
        marks, at, lease = self._bytes, delivery.mark_at, delivery.lease
        delivery.started = now
        if marks[at] == _RECALLED and not delivery.acked:
            delivery.kind = LEFT
            return False
        # The mark before reading `recall`: see board.py.
        marks[at] = _RUNNING
        if marks[lease.recall_at] or (now > lease.start_by and not lease.may_start(now)):
            if delivery.acked:
                return True  # no other worker will run it
            marks[at] = _GONE
            delivery.kind = DROPPED
            return False
        return True

    def enter(self, slot: int, deliveries: Sequence[Delivery], now: float) -> None:
        """Enter a call on the board: of a batch only the first delivery."""
        first = deliveries[0]
        assert first.task is not None
        number, limit_s = self._known[first.task]
        limit = now + limit_s if limit_s else 0.0
        for delivery in deliveries:
            delivery.limit = limit
        self._running.begin(slot, first.lease.slot, first.position, number, now, limit)

    def run(self, slot: int, delivery: Delivery, now: float) -> float:
        """Run a sync handler from `now` on; returns when it has ended, and notes how. Raises nothing.

        The handler has its own context. The caller resets `running`.
        """
        task = self._begin(slot, delivery, now)
        if task is None:
            return now
        running.set(delivery)
        context = copy_context()
        try:
            if self.middleware:
                context.run(self.before, delivery)
            if delivery.kwargs:
                if delivery.gather and not self._gathering.fill(delivery):
                    return self._give_up(slot, delivery, now)
                result = context.run(task.function, *delivery.args, **delivery.kwargs)
            else:
                result = context.run(task.function, *delivery.args)
            if result is not None and needs_awaiting(result, task.name):
                result = self.finish(task, result, context)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is its failure too
            self.endings.fail(delivery, error, context=context)
        else:
            if task.result_type is not None or delivery.gather:
                self.endings.keep(delivery, task.result_type, result, context=context)
            else:
                # `Endings.succeed`, without the call.
                delivery.kind = ACKED
                self._bytes[delivery.mark_at] = _DONE
                if self.middleware:
                    self.endings.within(context, self.endings.after, delivery, None)
        ended = self.clock()
        delivery.took_s = ended - now
        self._words[self._slot_words[slot]] = 0  # `Board.end`
        return ended

    async def arun(self, slot: int, delivery: Delivery, now: float) -> float:
        """Run an async handler, as `run` does, in the context of the caller, where it is `running` already."""
        task = self._begin(slot, delivery, now)
        if task is None:
            return now
        try:
            if self.middleware:
                self.before(delivery)
            if delivery.gather and not await self._gathering.afill(delivery):
                return self._give_up(slot, delivery, now)
            result = task.function(*delivery.args, **delivery.kwargs)
            if type(result) is CoroutineType:
                result = await result
            if result is not None:
                # Awaiting it may return another coroutine: that of a decorator which forgot its own await.
                while needs_awaiting(result, task.name):
                    result = await result
        except BaseException as error:  # noqa: BLE001
            self.endings.fail(delivery, error)
        else:
            if task.result_type is not None or delivery.gather:
                self.endings.keep(delivery, task.result_type, result)
            else:
                # `Endings.succeed`, without the call.
                delivery.kind = ACKED
                self._bytes[delivery.mark_at] = _DONE
                if self.middleware:
                    self.endings.after(delivery, None)
        ended = self.clock()
        delivery.took_s = ended - now
        self._words[self._slot_words[slot]] = 0  # `Board.end`
        return ended

    def finish(self, task: Task[..., Any], result: Any, context: Context) -> Any:
        """Await the awaitable that a plain function returned, while its slot waits; returns the result."""
        if task.wraps_async:
            # A decorator that returns the coroutine which it wraps: the next calls go to the loop.
            task.is_async = True
            self.on_async()
        elif task.name not in self._awaited:
            self._awaited.add(task.name)
            _log.warning(
                "awaitable_returned",
                queue=task.queue,
                task=task.name,
                hint="its slot waits while it is awaited; make the outermost function async def",
            )
        while result is not None and needs_awaiting(result, task.name):
            result = context.run(self.awaiter.wait, result)
        return result

    def _begin(self, slot: int, delivery: Delivery, now: float) -> Task[..., Any] | None:
        """Mark, prepare and enter a delivery; returns its task, None if it has ended already."""
        # `mark_running` for a message that may start, without the call.
        marks, at, lease = self._bytes, delivery.mark_at, delivery.lease
        if marks[at] != _RECALLED and now <= lease.start_by:
            delivery.started = now
            marks[at] = _RUNNING
            if marks[lease.recall_at] and not self.mark_running(delivery, now):
                return None
        elif not self.mark_running(delivery, now):
            return None
        if not (delivery.task or self.prepare(delivery)):
            return None
        task = delivery.task
        assert task is not None
        number, limit_s = self._known[task]
        limit = delivery.limit = now + limit_s if limit_s else 0.0
        self._running.begin(slot, delivery.lease.slot, delivery.position, number, now, limit)
        return task

    def _give_up(self, slot: int, delivery: Delivery, now: float) -> float:
        """Note that a message has ended before its handler was called; returns when."""
        ended = self.clock()
        delivery.took_s = ended - now
        self._words[self._slot_words[slot]] = 0  # `Board.end`
        return ended

    def before(self, delivery: Delivery) -> None:
        """Run the middleware's `before`, which may raise anything."""
        context = delivery.context()
        for middleware in self.middleware:
            middleware.before(context)

    def detach(self, end: Callable[..., NoReturn]) -> None:
        """Call `end` when a handler ends in a forked copy, instead of noting how: the message is not the copy's."""
        marks = self._bytes = ForkedMarks(end)
        self.endings.detach(end, marks)
