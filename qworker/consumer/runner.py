"""Runs the handler of one delivery and says how the message ends. Knows neither Redis nor threads nor loops."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog

from qworker import codec
from qworker.consumer.board import OUTCOMES, Board, Mark
from qworker.consumer.context import running
from qworker.consumer.control import Bury, ControlFlow, Discard, LetExpire, Release, Retry
from qworker.errors import InvalidError, TimeLimitError

if TYPE_CHECKING:
    from qworker.commands.receiving import Outcomes
    from qworker.consumer.delivery import Delivery
    from qworker.consumer.middleware import Middleware
    from qworker.consumer.task import Task

__all__ = ["DROPPED", "Runner", "tell"]

_log = structlog.get_logger(__name__)

#: Kinds of end beside those of `lua/lib/settle.lua`: never started, and given back; left to expire.
DROPPED: Final = "-"
LEFT: Final = "l"
#: Receives of a message whose task nobody here knows, a few seconds apart: another version may know it.
_UNKNOWN_TASK_DELAY_MS: Final = 5000
_ERROR_CHARACTERS: Final = 2048
_DEFAULT_MAX_RECEIVES: Final = 5
_ACKED, _NACKED, _BURIED, _RELEASED, _DISCARDED, _EXPIRED = range(len(OUTCOMES))


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
        clock: Callable[[], float],
        numbers: dict[str, int] | None = None,
    ) -> None:
        self.tasks = tasks
        self.numbers = numbers or {name: number for number, name in enumerate(sorted(tasks))}
        self.board = board
        self.clock = clock
        self._bytes = board.bytes
        self._floats = board.floats
        self._middleware = middleware
        self._max_receives = max_receives

    # -- before --------------------------------------------------------------------------------

    def mark_running(self, delivery: Delivery, now: float) -> bool:
        """Mark a delivery as running; False where it must not start any more (it is dropped then)."""
        marks, at, lease = self._bytes, delivery.mark_at, delivery.lease
        if marks[at] == Mark.GONE:
            delivery.kind = LEFT
            return False
        # The mark before the look at `recall`: see board.py.
        marks[at] = Mark.RUNNING
        if marks[lease.recall_at] or now > self._floats[lease.deadline_at] - lease.margin_s:
            marks[at] = Mark.GONE
            delivery.kind = DROPPED
            return False
        return True

    def prepare(self, delivery: Delivery) -> bool:
        """Find task and arguments; False where the message has ended without them. Raises nothing."""
        envelope = delivery.envelope()
        if envelope is None:
            return self._end(delivery, "b", _BURIED, reason="foreign")
        try:
            call = codec.decode_call(envelope.body)
        except InvalidError as error:
            return self._bad_arguments(delivery, error)
        task = self.tasks.get(call.task)
        if task is None:
            return self._unknown_task(delivery, call.task)
        delivery.task = task
        if not envelope.first_try and envelope.nacks + envelope.timeouts >= self._limit(delivery):
            return self._end(delivery, "b", _BURIED, reason="max_receives")
        try:
            delivery.args, delivery.kwargs = task.signature.decode(call.args, call.kwargs)
        except InvalidError as error:
            return self._bad_arguments(delivery, error)
        return True

    def peek(self, delivery: Delivery) -> Task[..., Any] | None:
        """Find the task of a delivery without ending the message where there is none."""
        envelope = delivery.envelope()
        try:
            return (
                None if envelope is None else self.tasks.get(codec.decode_call(envelope.body).task)
            )
        except InvalidError:
            return None

    def _limit(self, delivery: Delivery) -> int:
        """Max receives of a message: its own, else its task's, else its queue's."""
        envelope = delivery.envelope()
        own = envelope.flags.get("m", "") if envelope and envelope.has_flags else ""
        if own.isdecimal():
            return int(own)
        task = delivery.task
        if task is not None and task.task_options.max_receives is not None:
            return task.task_options.max_receives
        return self._max_receives(delivery.lease.queue.name)

    def _bad_arguments(self, delivery: Delivery, error: InvalidError) -> bool:
        delivery.error = (type(error).__name__, str(error)[:_ERROR_CHARACTERS])
        self._log_end("message_rejected", delivery, reason="bad_arguments", error=str(error))
        return self._end(delivery, "b", _BURIED, reason="bad_arguments")

    def _unknown_task(self, delivery: Delivery, name: str) -> bool:
        envelope = delivery.envelope()
        assert envelope is not None
        delivery.error = ("UnknownTaskError", f"no task is named {name[:200]!r}")
        self._log_end("task_unknown", delivery, name=name[:200])
        if envelope.nacks + envelope.timeouts + 1 >= self._limit(delivery):
            return self._end(delivery, "b", _BURIED, reason="unknown_task")
        delivery.delay_ms = _UNKNOWN_TASK_DELAY_MS * (envelope.nacks + 1)
        return self._end(delivery, "n", _NACKED)

    # -- during --------------------------------------------------------------------------------

    def call(self, delivery: Delivery) -> None:
        """Run a sync handler; the delivery knows afterwards how it ended. Raises nothing."""
        task = delivery.task
        assert task is not None
        token = running.set(delivery)
        try:
            if self._middleware:
                self._before(delivery)
            task.function(*delivery.args, **delivery.kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is its failure too
            self.fail(delivery, error)
        else:
            delivery.kind = "a"
            self._bytes[delivery.mark_at] = Mark.DONE
        if self._middleware:
            self._after(delivery)
        running.reset(token)

    async def acall(self, delivery: Delivery) -> None:
        """Run an async handler, as `call` does; passes on a cancellation that nobody here asked for."""
        task = delivery.task
        assert task is not None
        token = running.set(delivery)
        try:
            if self._middleware:
                self._before(delivery)
            await task.function(*delivery.args, **delivery.kwargs)
        except BaseException as error:  # noqa: BLE001
            if delivery.cancelled_for == "time_limit":
                limit_s = (task.task_options.time_limit_ms or 0) / 1000
                error = TimeLimitError(task.name, limit_s)
            self.fail(delivery, error)
        else:
            delivery.kind = "a"
            self._bytes[delivery.mark_at] = Mark.DONE
        if self._middleware:
            self._after(delivery)
        running.reset(token)

    def _before(self, delivery: Delivery) -> None:
        context = delivery.context()
        for each in self._middleware:
            each.before(context)

    def _after(self, delivery: Delivery) -> None:
        context = delivery.context()
        for each in reversed(self._middleware):
            try:
                each.after(context, OUTCOMES[delivery.outcome], None)
            except Exception:
                _log.exception("middleware_failed", middleware=type(each).__name__)

    # -- after ---------------------------------------------------------------------------------

    def succeed(self, delivery: Delivery) -> None:
        """Note that a message of a batch handler was handled."""
        delivery.kind = "a"
        self._bytes[delivery.mark_at] = Mark.DONE

    def fail(self, delivery: Delivery, error: BaseException) -> None:
        """Turn what a handler raised into the end of its message."""
        task = delivery.task
        envelope = delivery.envelope()
        assert task is not None
        assert envelope is not None
        match error:
            case Discard():
                self._end(delivery, "d", _DISCARDED)
                self._log_end("message_discarded", delivery, reason=error.reason)
                return
            case Release():
                delivery.delay_ms = error.delay_ms
                self._end(delivery, "r", _RELEASED)
                return
            case LetExpire():
                self._end(delivery, LEFT, _RELEASED)
                return
            case Bury():
                delivery.error = ("Bury", error.reason[:_ERROR_CHARACTERS])
                self._end(delivery, "b", _BURIED, reason="rejected")
                self._log_end("message_buried", delivery, reason=error.reason)
                return
        policy = task.task_options.retry
        tried = envelope.nacks + 1
        if isinstance(error, Retry):
            delivery.error = ("Retry", "the handler asked for another try")
            wait_ms = error.delay_ms
        else:
            delivery.error = (type(error).__name__[:200], _words(error))
            wait_ms = None
        final = policy.is_final and not isinstance(error, Retry)
        dead = tried + envelope.timeouts >= self._limit(delivery)
        if not isinstance(error, ControlFlow):
            self._log_end(
                "message_failed",
                delivery,
                error=type(error).__name__,
                dead=dead or final,
                exc_info=(type(error), error, error.__traceback__),
            )
        if final:
            self._end(delivery, "b", _BURIED, reason="max_receives")
            return
        if wait_ms is None:
            wait_ms = policy.delay_ms(tried, random.random)
        delivery.delay_ms = wait_ms
        self._end(delivery, "n", _BURIED if dead else _NACKED)

    def _end(self, delivery: Delivery, kind: str, outcome: int, reason: str = "") -> bool:
        delivery.kind = kind
        delivery.outcome = outcome
        delivery.reason = reason
        self._bytes[delivery.mark_at] = Mark.FAILED
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


def tell(delivery: Delivery, outcomes: Outcomes) -> None:
    """Add the end of a delivery to what is to be told of its lease."""
    lease, kind = delivery.lease, delivery.kind
    if delivery.acked:
        lease.open -= 1
        return
    if kind == "a":
        envelope = delivery.envelope()
        unique = envelope.flags.get("u") if envelope and envelope.has_flags else None
        if envelope and unique:
            outcomes.uniques += (delivery.index, quote(unique, safe=""), envelope.id)
        else:
            outcomes.acks.append(delivery.index)
    elif kind == "n":
        task = delivery.task
        envelope = delivery.envelope()
        first = envelope.flags.get("f", "") if envelope and envelope.has_flags else ""
        outcomes.nack(
            delivery.index,
            delivery.delay_ms,
            max_receives=task.task_options.max_receives if task else None,
            first_received_ms=None if first else lease.now_ms,
            error=delivery.error,
        )
    elif kind == "b":
        outcomes.bury(delivery.index, delivery.reason, delivery.error)
    elif kind == "d":
        outcomes.discard(delivery.index)
    elif kind in ("r", DROPPED):
        outcomes.release(delivery.index, delivery.delay_ms)
    else:
        # Left to its deadline, or settled by the supervisor: nothing to tell, but no longer in hand.
        lease.open -= 1
        lease.partly = True


def _words(error: BaseException) -> str:
    """The end of the traceback and the error's text, in at most 2 KiB; survives errors that cannot be shown."""
    try:
        lines = traceback.format_exception(error, limit=-8)
        text = "".join(lines)
    except Exception:  # noqa: BLE001 - __str__ of a user's error may raise anything
        text = f"{type(error).__name__} (its text cannot be shown)"
    return text[-_ERROR_CHARACTERS:]
