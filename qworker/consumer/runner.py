"""Runs the handler of one delivery and says how the message ends. Knows neither Redis nor threads nor loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qworker.app.calls import Calls
from qworker.app.context import running
from qworker.app.control import Bury, ControlFlow, Discard, LetExpire, Release, Retry
from qworker.config.kinds import MAX_DELAY_MS, shown
from qworker.consumer.awaiting import Awaiter, needs_awaiting
from qworker.consumer.board import Board, Mark
from qworker.consumer.counters import OUTCOMES
from qworker.consumer.delivery import (
    ACKED,
    BURIED,
    DISCARDED,
    DROPPED,
    EXPIRED,
    LEFT,
    NACKED,
    RELEASED,
)
from qworker.consumer.elsewhere import UNKNOWN_WAIT_MS, pause_ms, pause_of_paused_ms
from qworker.consumer.failure import MAX_CHARACTERS, failure_text, name_of, words_of
from qworker.errors import (
    InvalidError,
    InvalidOptionError,
    ProtectionError,
    TimeLimitError,
    UnknownKeyError,
)
from qworker.telemetry.guarded import guarded
from qworker.telemetry.logs import Seldom
from qworker.wire import codec
from qworker.wire.envelope import FIRST, Envelope
from qworker.wire.keyring import is_encrypted
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.app.middleware import Middleware
    from qworker.app.task import Task
    from qworker.consumer.delivery import Delivery

__all__ = ["CANCELLED", "LOST", "TIME_LIMIT", "Runner"]

_log = guarded(__name__)

#: Why a handler was cancelled, `Delivery.cancelled_for`.
TIME_LIMIT: Final = "time_limit"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
_DEFAULT_MAX_RECEIVES: Final = 5
#: What a message waits whose failure could not be read.
_UNREADABLE_MS: Final = 5000
_TIMED_OUT: Final = OUTCOMES.index("time_limit")
#: What is counted for each kind of end, as a place in `OUTCOMES`.
_OUTCOME: Final = {
    ACKED: OUTCOMES.index("acked"),
    NACKED: OUTCOMES.index("nacked"),
    BURIED: OUTCOMES.index("buried"),
    RELEASED: OUTCOMES.index("released"),
    DISCARDED: OUTCOMES.index("discarded"),
    EXPIRED: OUTCOMES.index("expired"),
}
#: What the supervisor is to do should the child die before it has told: ack, nack, or release uncounted.
_MARK: Final = {
    NACKED: Mark.FAILED,
    BURIED: Mark.FAILED,
    EXPIRED: Mark.FAILED,
    RELEASED: Mark.RELEASED,
    DISCARDED: Mark.DONE,
}


# Plain ints: an IntEnum member costs more to look up and to store than all else that is done with it here.
_RUNNING: Final = int(Mark.RUNNING)
_DONE: Final = int(Mark.DONE)
_GONE: Final = int(Mark.GONE)
_RECALLED: Final = int(Mark.RECALLED)


class _NoMarks:
    """The marks of a board in a forked copy: who would set one has come to the end of its handler."""

    def __init__(self, end: Callable[..., NoReturn]) -> None:
        self._end = end

    def __getitem__(self, at: int) -> int:
        return _RECALLED

    def __setitem__(self, at: int, mark: int) -> None:
        self._end()


class Runner:
    """Prepares deliveries and turns what handlers do into outcomes.

    `max_receives`: queue name → the queue's attribute. `numbers`: task name → its place on the board.
    """

    def __init__(
        self,
        tasks: dict[str, Task[..., Any]],
        board: Board,
        middleware: Sequence[Middleware],
        *,
        max_receives: Callable[[str], int] = lambda _: _DEFAULT_MAX_RECEIVES,
        unknown_wait_ms: int = UNKNOWN_WAIT_MS,
        clock: Callable[[], float],
        numbers: dict[str, int] | None = None,
    ) -> None:
        self.tasks = tasks
        self.numbers = numbers or {name: number for number, name in enumerate(sorted(tasks))}
        self.board = board
        self.clock = clock
        self.middleware = middleware
        self._bytes: memoryview | _NoMarks = board.bytes
        self._words = board.words
        self._slot_words = [board.running_word(slot) for slot in range(board.slots)]
        self._paused_word = board.orders.paused_word
        #: Awaits what plain functions return. Closed by the executor of sync handlers.
        self.awaiter = Awaiter()
        #: Called when a plain function has turned out to be one whose calls are to be awaited on the loop.
        self.on_async: Callable[[], None] = lambda: None
        self._awaited: set[str] = set()
        self._max_receives = max_receives
        self._unknown_wait_ms = unknown_wait_ms
        self._seldom = Seldom()
        self._read = Calls({task.signature: task for task in tasks.values()}).read
        #: Of each task its number on the board, and the seconds that its handler may take; 0 is no limit.
        self._known = {
            task: (self.numbers[name], (task.task_options.time_limit_ms or 0) / 1000)
            for name, task in tasks.items()
        }

    # -- before --------------------------------------------------------------------------------

    def mark_running(self, delivery: Delivery, now: float) -> bool:
        """Mark a delivery as running; False where it must not start any more (it is dropped then)."""
        marks, at, lease = self._bytes, delivery.mark_at, delivery.lease
        delivery.started = now
        if marks[at] == _RECALLED and not delivery.acked:
            delivery.kind = LEFT
            return False
        # The mark before the look at `recall`: see board.py.
        marks[at] = _RUNNING
        if marks[lease.recall_at] or (now > lease.start_by and not lease.may_start(now)):
            if delivery.acked:
                return True  # nobody else will run it
            marks[at] = _GONE
            delivery.kind = DROPPED
            return False
        return True

    def prepare(self, delivery: Delivery) -> bool:
        """Find task and arguments; False where the message has ended without them. Raises nothing."""
        item = delivery.item
        first = delivery.first = FIRST.match(item)
        if first is None:
            return self._prepare_again(delivery)
        body = item[first.end() :]
        call = self._read(body)
        if call is None:
            return self._prepare_any(delivery, body)
        delivery.task, delivery.args = call
        return not self._words[self._paused_word] or self._goes_on(delivery)

    def _prepare_again(self, delivery: Delivery) -> bool:
        """Do what `prepare` does for what is no first delivery of an own message."""
        envelope = delivery.envelope()
        if envelope is None:
            return self._end(delivery, BURIED, reason="foreign")
        if is_encrypted(envelope):
            return self._prepare_encrypted(delivery, envelope)
        return self._prepare_any(delivery, envelope.body)

    def _prepare_encrypted(self, delivery: Delivery, envelope: Envelope) -> bool:
        """Leave a message to others that no key here opens, whatever its body looks like."""
        problem = "is encrypted, and no key is held here (QWORKER_KEYS_FILE)"
        name = delivery.lease.queue.name
        return self.unknown_key(delivery, UnknownKeyError(name, envelope.id, problem))

    def _prepare_any(self, delivery: Delivery, body: bytes) -> bool:
        """Do what `prepare` does for a call by name, and find the words for what is wrong with a body."""
        try:
            call = codec.decode_call(body)
        except InvalidError as error:
            return self._bad_arguments(delivery, error)
        task = self.tasks.get(call.task)
        if task is None:
            return self._unknown_task(delivery, call.task)
        delivery.task = task
        if delivery.first is None and self._is_spent(delivery):
            return self._end(delivery, BURIED, reason="max_receives")
        try:
            delivery.args, delivery.kwargs = task.signature.decode(call.args, call.kwargs)
        except InvalidError as error:
            return self._bad_arguments(delivery, error)
        except BaseException as error:  # noqa: BLE001 - code of the task's own types
            self.fail(delivery, error)
            return False
        return not self._words[self._paused_word] or self._goes_on(delivery)

    def _goes_on(self, delivery: Delivery) -> bool:
        """Put the message of a paused task back, uncounted; True where its task is not paused."""
        task = delivery.task
        assert task is not None
        since = self.board.orders.paused_since(self.numbers[task.name])
        if since is None:
            return True
        if (held := self._seldom.more(f"paused {task.name}")) is not None:
            more = {"held_back": held} if held else {}
            self._log_end("task_paused", delivery, **more)
        delivery.delay_ms = pause_of_paused_ms(round((self.clock() - since) * 1000))
        return self._end(delivery, RELEASED)

    def enter(self, slot: int, deliveries: Sequence[Delivery], now: float) -> None:
        """Put a call on the board: one delivery, or those of a batch handler, for whom the first one stands."""
        first = deliveries[0]
        assert first.task is not None
        number, limit_s = self._known[first.task]
        limit = now + limit_s if limit_s else 0.0
        for delivery in deliveries:
            delivery.limit = limit
        self.board.begin(slot, first.lease.slot, first.place, number, now, limit)

    def _is_spent(self, delivery: Delivery) -> bool:
        """Whether a message has failed as often as it or its task allows. The queue's own limit the server minds."""
        envelope = delivery.envelope()
        limit = self._own_limit(delivery)
        return (
            envelope is not None
            and limit is not None
            and envelope.nacks + envelope.timeouts >= limit
        )

    def _own_limit(self, delivery: Delivery) -> int | None:
        envelope = delivery.envelope()
        own = whole(envelope.flags.get("m")) if envelope and envelope.has_flags else None
        if own is not None:
            return own
        return delivery.task.task_options.max_receives if delivery.task is not None else None

    def _is_last(self, delivery: Delivery) -> bool:
        """Whether one more failure is as many as a message may have."""
        envelope = delivery.envelope()
        return envelope is not None and envelope.nacks + envelope.timeouts + 1 >= self._limit(
            delivery
        )

    def _limit(self, delivery: Delivery) -> int:
        """Max receives of a message: its own, else its task's, else its queue's."""
        own = self._own_limit(delivery)
        return self._max_receives(delivery.lease.queue.name) if own is None else own

    def refuse(self, delivery: Delivery, error: ProtectionError) -> bool:
        """Bury a message whose signature or encryption is wrong."""
        delivery.error = (type(error).__name__, error.problem)
        self._log_end("message_rejected", delivery, reason=error.reason, error=error.problem)
        return self._end(delivery, BURIED, reason=error.reason)

    def unknown_key(self, delivery: Delivery, error: UnknownKeyError) -> bool:
        """Put a message back whose key another worker may hold."""
        delivery.error = (type(error).__name__, error.problem)
        return self._wait_elsewhere(delivery, error.reason, "key_unknown", error=error.problem)

    def _bad_arguments(self, delivery: Delivery, error: InvalidError) -> bool:
        delivery.error = (type(error).__name__, str(error)[:MAX_CHARACTERS])
        self._log_end("message_rejected", delivery, reason="bad_arguments", error=str(error))
        return self._end(delivery, BURIED, reason="bad_arguments")

    def _unknown_task(self, delivery: Delivery, name: str) -> bool:
        delivery.error = ("UnknownTaskError", f"no task is named {name[:200]!r}")
        return self._wait_elsewhere(delivery, "unknown_task", "task_unknown", name=name[:200])

    def _wait_elsewhere(self, delivery: Delivery, reason: str, event: str, **fields: Any) -> bool:
        """Put a message back, uncounted, that a worker of another version may know; dead once that takes too long.

        Told once per minute for each task or key: thousands may wait.
        """
        waited_ms = max(0, delivery.lease.now_ms - delivery.unknown_since_ms)
        pause = pause_ms(waited_ms, self._unknown_wait_ms)
        # An end is always told: it happens once to a message.
        held = 0 if pause is None else self._seldom.more(f"{event} {fields}")
        if held is not None:
            more = {"held_back": held} if held else {}
            waited_s = round(waited_ms / 1000, 1)
            dead = pause is None
            self._log_end(event, delivery, **fields, waited_seconds=waited_s, dead=dead, **more)
        if pause is None:
            return self._end(delivery, BURIED, reason=reason)
        delivery.delay_ms = pause
        return self._end(delivery, RELEASED, reason=reason)

    # -- during --------------------------------------------------------------------------------

    def run(self, slot: int, delivery: Delivery, now: float) -> float:
        """Run a sync handler from `now` on; returns when it had ended, and the delivery knows how. Raises nothing.

        What it sets in context variables ends with it. `running` is left as it is: who calls sets it back.
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
                result = context.run(task.function, *delivery.args, **delivery.kwargs)
            else:
                result = context.run(task.function, *delivery.args)
            if result is not None and needs_awaiting(result, task.name):
                self.finish(task, result, context)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is its failure too
            self.fail(delivery, error, context=context)
        else:
            # `succeed`, without the call.
            delivery.kind = ACKED
            self._bytes[delivery.mark_at] = _DONE
            if self.middleware:
                self._within(context, self.after, delivery, None)
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
            result = task.function(*delivery.args, **delivery.kwargs)
            if type(result) is CoroutineType:
                result = await result
            if result is not None:
                # What is awaited may come to another coroutine: that of a decorator which forgot its own await.
                while needs_awaiting(result, task.name):
                    result = await result
        except BaseException as error:  # noqa: BLE001
            self.fail(delivery, error)
        else:
            # `succeed`, without the call.
            delivery.kind = ACKED
            self._bytes[delivery.mark_at] = _DONE
            if self.middleware:
                self.after(delivery, None)
        ended = self.clock()
        delivery.took_s = ended - now
        self._words[self._slot_words[slot]] = 0  # `Board.end`
        return ended

    def finish(self, task: Task[..., Any], result: Any, context: Context) -> Any:
        """Await what a plain function returned, while its slot waits; returns what that comes to."""
        if task.wraps_async:
            # A decorator that hands on the coroutine which it wraps: the next calls go to the loop.
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
        """Mark, prepare and enter a delivery; returns its task, None where it has ended already."""
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
        self.board.begin(slot, delivery.lease.slot, delivery.place, number, now, limit)
        return task

    def before(self, delivery: Delivery) -> None:
        """Run the middleware's `before`. Raises what it raises."""
        context = delivery.context()
        for each in self.middleware:
            each.before(context)

    def after(self, delivery: Delivery, error: BaseException | None) -> None:
        """Run the middleware's `after`, whatever it raises."""
        context = delivery.context()
        for each in reversed(self.middleware):
            try:
                each.after(context, OUTCOMES[delivery.outcome], error)
            except BaseException as problem:  # noqa: BLE001 - what has ended has ended
                _log.error(
                    "middleware_failed",
                    middleware=type(each).__name__,
                    error=name_of(problem),
                    exception=failure_text(problem),
                )

    # -- after ---------------------------------------------------------------------------------

    def succeed(self, delivery: Delivery) -> None:
        """Note that a message was handled."""
        delivery.kind = ACKED
        self._bytes[delivery.mark_at] = _DONE
        if self.middleware:
            self.after(delivery, None)

    def fail(
        self,
        delivery: Delivery,
        error: BaseException,
        *,
        quiet: bool = False,
        context: Context | None = None,
    ) -> None:
        """Turn what a handler raised into the end of its message; `quiet`: without a line in the log. Raises nothing.

        `context`: that of the handler, None where it is the caller's: lines of the log carry what was bound there.
        """
        if delivery.cancelled_for == TIME_LIMIT:
            limit_ms = delivery.task.task_options.time_limit_ms if delivery.task else None
            name = delivery.task.name if delivery.task else ""
            cancelled, error = error, TimeLimitError(name, (limit_ms or 0) / 1000)
            error.__cause__ = cancelled  # its traceback says where the handler was
        self._within(context, self._conclude, delivery, error, quiet)
        if delivery.cancelled_for == TIME_LIMIT:
            # As a supervisor counts those of sync handlers.
            delivery.outcome = _TIMED_OUT
        if self.middleware:
            self._within(context, self.after, delivery, error)

    def let_go(self, end: Callable[..., NoReturn]) -> None:
        """Call `end` where a handler ends in a forked copy, instead of noting how: the message is not the copy's."""
        self.fail = end  # type: ignore[method-assign]
        self._bytes = _NoMarks(end)

    def lose(self, delivery: Delivery, error: BaseException) -> None:
        """Give a message another try whose handler was cut off by an error that is not its own. Raises nothing."""
        delivery.error = (name_of(error), failure_text(error))
        delivery.delay_ms = _UNREADABLE_MS
        self._end(delivery, NACKED)
        if self._is_last(delivery):
            delivery.outcome = _OUTCOME[BURIED]

    def _conclude(self, delivery: Delivery, error: BaseException, quiet: bool) -> None:
        try:
            if delivery.cancelled_for == LOST:
                self._log_end("handler_cancelled", delivery, reason="lease_lost")
                self._end(delivery, EXPIRED)
            elif delivery.cancelled_for == CANCELLED:
                self._log_end("handler_cancelled", delivery, reason="operator")
                self._end(delivery, DISCARDED)
            # By the type alone: an error may say anything of its `__class__`.
            elif not issubclass(type(error), ControlFlow):
                self._try_again(delivery, error, quiet=quiet)
            else:
                self._obey(delivery, error)
        except BaseException as problem:  # noqa: BLE001 - the user's classes have a part in it
            # The message still gets its outcome, and the slot lives.
            self.lose(delivery, error)
            self._log_end(
                "failure_unreadable",
                delivery,
                error=name_of(error),
                problem=name_of(problem),
                exception=failure_text(problem),
            )

    def _within(self, context: Context | None, function: Callable[..., None], *args: Any) -> None:
        """Call a function of this runner in a context; in the caller's where that one cannot be entered."""
        if context is not None:
            try:
                context.run(function, *args)
                return
            except RuntimeError as error:
                _log.error("context_spoiled", error=words_of(error))
        function(*args)

    def _obey(self, delivery: Delivery, wish: BaseException) -> None:
        match wish:
            case Retry():
                self._try_again(delivery, wish, quiet=True)
            case Discard():
                self._end(delivery, DISCARDED)
                self._log_end("message_discarded", delivery, reason=words_of(wish.reason))
            case Release():
                delivery.delay_ms = _checked_ms(wish.delay_ms)
                self._end(delivery, RELEASED)
            case Bury():
                reason = words_of(wish.reason)
                delivery.error = ("Bury", reason)
                self._end(delivery, BURIED, reason="rejected")
                self._log_end("message_buried", delivery, reason=reason)
            case LetExpire():
                self._end(delivery, EXPIRED)
            case _:
                # A class of the user's own that says nothing of what to do.
                self._try_again(delivery, wish, quiet=False)

    def _try_again(self, delivery: Delivery, error: BaseException, *, quiet: bool) -> None:
        task, envelope = delivery.task, delivery.envelope()
        assert task is not None
        assert envelope is not None
        policy = task.task_options.retry
        dead = self._is_last(delivery)
        if issubclass(type(error), Retry):
            delay_ms = error.delay_ms  # type: ignore[attr-defined]
            delivery.error = ("Retry", "the handler asked for another try")
            asked_ms = None if delay_ms is None else _checked_ms(delay_ms)
            final = False
            if dead:
                self._log_end("message_failed", delivery, error="Retry", dead=True)
        else:
            text = failure_text(error)
            delivery.error = (name_of(error), text)
            asked_ms, final = None, policy.is_final or policy.gives_up_on(error)
            if not quiet:
                fields = {"error": name_of(error), "exception": text, "dead": dead or final}
                self._log_end("message_failed", delivery, **fields)
        if final:
            reason = "max_receives" if policy.is_final else "not_retried"
            self._end(delivery, BURIED, reason=reason)
            return
        delivery.delay_ms = (
            policy.delay_ms(envelope.nacks + 1, random.random) if asked_ms is None else asked_ms
        )
        self._end(delivery, NACKED)
        if dead:
            delivery.outcome = _OUTCOME[BURIED]

    def _end(self, delivery: Delivery, kind: str, reason: str = "") -> bool:
        delivery.kind = kind
        delivery.outcome = _OUTCOME[kind]
        delivery.reason = reason
        self._bytes[delivery.mark_at] = _MARK[kind]
        return False

    def _log_end(self, event: str, delivery: Delivery, **fields: Any) -> None:
        envelope = delivery.envelope()
        _log.warning(
            event,
            queue=delivery.lease.queue.name,
            task=delivery.task.name if delivery.task else None,
            message_id=envelope.id if envelope else None,
            receive_count=envelope.receives + 1 if envelope else None,
            **fields,
        )


def _checked_ms(delay_ms: object) -> int:
    """A delay that a handler has set; raises `InvalidOptionError` for what is not one."""
    if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
        raise InvalidOptionError(
            "delay_ms", f"{shown(delay_ms)} is out of range", f"an int from 0 to {MAX_DELAY_MS}"
        )
    return delay_ms
