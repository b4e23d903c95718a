"""How messages end: what a handler returned or raised, as an outcome that is noted on the message and on the board."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Final, NoReturn

from qworker.app.control import (
    NO_END,
    Bury,
    Cancel,
    ControlFlow,
    Discard,
    LetExpire,
    Parked,
    RateLimited,
    Release,
    Retry,
)
from qworker.config.kinds import DAY_MS, MAX_DELAY_MS
from qworker.consumer.board.counters import OUTCOMES
from qworker.consumer.board.states import Mark
from qworker.consumer.child.handlers.ending_notes import OUTCOME, EndingNotes, ForkedMarks
from qworker.consumer.child.leases.ending_kinds import (
    ACKED,
    BURIED,
    CANCELLED,
    DISCARDED,
    EXPIRED,
    KEPT,
    LIMITED,
    NACKED,
    PARKED,
    RELEASED,
)
from qworker.consumer.failure import failure_text, name_of, text_of
from qworker.engine.effects import END_EFFECT, Effect, result_effect
from qworker.errors import InvalidOptionError, TimeLimitError, shown
from qworker.telemetry.guarded import guarded
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.app.arguments.results import ResultType
    from qworker.app.middleware import Middleware
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.handlers.unrunnable import Patience
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["LOST", "STOPPED", "TIME_LIMIT", "Endings"]

_log = guarded(__name__)

#: Why a handler was cancelled, `Delivery.cancelled_for`.
TIME_LIMIT: Final = "time_limit"
LOST: Final = "lost"
STOPPED: Final = "stopped"  # its message was cancelled
# A plain int: an IntEnum member costs more to look up and to store than everything else that is done with it.
_DONE: Final = int(Mark.DONE)
_UNREADABLE_MS: Final = 5000  # the pause of a message whose failure could not be read
_TIMED_OUT: Final = OUTCOMES.index("time_limit")


class Endings(EndingNotes):
    """Ends messages. `max_receives`: queue name → the queue's attribute.

    `write_value`: writes the result of a message as it is stored, given its JSON, queue and id. `next_effects`: makes
    what follows a call, given its delivery and value.
    """

    def __init__(
        self,
        board: Board,
        middleware: Sequence[Middleware],
        max_receives: Callable[[str], int],
        write_value: Callable[[bytes, str, str], bytes],
        next_effects: Callable[[Delivery, bytes], list[Effect]],
        patience: Patience,
    ) -> None:
        super().__init__(board, middleware, patience)
        self._write_value = write_value
        self._next_effects = next_effects
        self._max_receives = max_receives

    def succeed(self, delivery: Delivery) -> None:
        """Note that a message was handled. `Runner.run` does the same without the call."""
        delivery.kind = ACKED
        self._marks[delivery.mark_at] = _DONE
        if self._middleware:
            self.after(delivery, None)

    def keep(
        self,
        delivery: Delivery,
        result_type: ResultType | None,
        result: object,
        *,
        context: Context | None = None,
    ) -> None:
        """Note that a message was handled and what its handler returned, if its sender asked for that. Raises nothing.

        `result_type` None: its task keeps no results, but is the callback of a group of calls. A
        result that cannot be kept makes it a dead letter: the next try would return the same. `context` as of `fail`.
        """
        self.within(context, self._keep, delivery, result_type, result)

    def _keep(self, delivery: Delivery, result_type: ResultType | None, result: object) -> None:
        keep_ms = None if delivery.acked or result_type is None else delivery.keep_ms
        if keep_ms is None and not delivery.then and not delivery.gather:
            self.succeed(delivery)
            return
        effects: list[Effect] = [END_EFFECT] if delivery.gather else []
        try:
            value = b"" if result_type is None else result_type.encode(result)
            context, queue = delivery.context(), delivery.lease.queue.name
            if keep_ms is not None:
                stored = self._write_value(value, queue, context.message_id)
                effects.append(result_effect(stored, keep_ms))
            if delivery.then:
                effects += self._next_effects(delivery, value)
        except BaseException as error:  # noqa: BLE001 - code of the result's own types
            delivery.error = (name_of(error), text_of(error))
            self.log("result_refused", delivery, error=delivery.error[0], problem=delivery.error[1])
            self.end(delivery, BURIED, reason="bad_result")
            if self._middleware:
                self.after(delivery, error)
            return
        delivery.effects = tuple(effects)
        self.end(delivery, KEPT)
        if self._middleware:
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

        `context`: that of the handler, None if it is the caller's: lines of the log have the fields bound there.
        """
        if delivery.cancelled_for == TIME_LIMIT:
            limit_ms = delivery.task.task_options.time_limit_ms if delivery.task else None
            name = delivery.task.name if delivery.task else ""
            cancelled, error = error, TimeLimitError(name, (limit_ms or 0) / 1000)
            error.__cause__ = cancelled  # its traceback says where the handler was
        self.within(context, self._conclude, delivery, error, quiet)
        if delivery.cancelled_for == TIME_LIMIT:
            delivery.outcome = _TIMED_OUT  # as a supervisor counts those of sync handlers
        if self._middleware:
            reported = None if delivery.kind == PARKED or type(error) in NO_END else error
            self.within(context, self.after, delivery, reported)

    def lose(self, delivery: Delivery, error: BaseException) -> None:
        """Give a message another try whose handler was cut off by an error that is not its own. Raises nothing."""
        delivery.error = (name_of(error), failure_text(error))
        delivery.delay_ms = _UNREADABLE_MS
        self.end(delivery, NACKED)
        if self._is_last(delivery):
            delivery.outcome = OUTCOME[BURIED]

    def is_spent(self, delivery: Delivery) -> bool:
        """Whether a message has failed as often as it or its task allows. The server enforces the queue's own limit."""
        envelope = delivery.envelope()
        limit = _own_limit(delivery)
        return (
            envelope is not None
            and limit is not None
            and envelope.nacks + envelope.timeouts >= limit
        )

    def detach(self, end: Callable[..., NoReturn], marks: ForkedMarks) -> None:
        """Call `end` when a handler ends in a forked copy, instead of noting how: the message is not the copy's."""
        self.fail = end  # type: ignore[method-assign]
        self._marks = marks

    def _is_last(self, delivery: Delivery) -> bool:
        """Whether this failure is the last that a message may have: by its own limit, its task's or its queue's."""
        envelope = delivery.envelope()
        limit = _own_limit(delivery)
        if limit is None:
            limit = self._max_receives(delivery.lease.queue.name)
        return envelope is not None and envelope.nacks + envelope.timeouts + 1 >= limit

    def _conclude(self, delivery: Delivery, error: BaseException, quiet: bool) -> None:
        try:
            if delivery.cancelled_for == LOST:
                self.log("handler_cancelled", delivery, reason="lease_lost")
                self.end(delivery, EXPIRED)
            # By types alone: an error may return anything as its `__class__`.
            elif self._is_cancelled(delivery, error):
                self.log("message_cancelled", delivery)
                self.end(delivery, CANCELLED)
            elif type(error) is Parked:
                delivery.parked = error
                self.end(delivery, PARKED)
            elif type(error) in NO_END:
                self.put_back(delivery, error)
            elif issubclass(type(error), ControlFlow):
                self._obey(delivery, error)
            else:
                self._retry(delivery, error, quiet=quiet)
        except BaseException as problem:  # noqa: BLE001 - the user's classes take part
            # The message still gets its outcome, and the slot lives on.
            self.lose(delivery, error)
            self.log(
                "failure_unreadable",
                delivery,
                error=name_of(error),
                problem=name_of(problem),
                exception=failure_text(problem),
            )

    def _is_cancelled(self, delivery: Delivery, error: BaseException) -> bool:
        """Whether an error ends a message as cancelled: any error does, once the message was cancelled.

        Another try would only be dropped later. A handler that asks for another end gets it.
        """
        if issubclass(type(error), Cancel):
            return True
        return not issubclass(type(error), Discard | Bury) and delivery.cancelled

    def _obey(self, delivery: Delivery, wish: BaseException) -> None:
        match wish:
            case Retry():
                self._retry(delivery, wish, quiet=True)
            case Discard():
                self.end(delivery, DISCARDED)
                self.log("message_discarded", delivery, reason=text_of(wish.reason))
            case Release():
                delivery.delay_ms = _checked_ms(wish.delay_ms)
                self.end(delivery, RELEASED)
            case RateLimited():
                delivery.delay_ms = _checked_ms(wish.delay_ms, 1, DAY_MS)
                self.end(delivery, LIMITED)
                self.log("queue_rate_limited", delivery, seconds=delivery.delay_ms / 1000)
            case Bury():
                reason = text_of(wish.reason)
                delivery.error = ("Bury", reason)
                self.end(delivery, BURIED, reason="rejected")
                self.log("message_buried", delivery, reason=reason)
            case LetExpire():
                self.end(delivery, EXPIRED)
            case _:
                # A class of the user's own, which says nothing about the end of the message.
                self._retry(delivery, wish, quiet=False)

    def _retry(self, delivery: Delivery, error: BaseException, *, quiet: bool) -> None:
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
                self.log("message_failed", delivery, error="Retry", dead=True)
        else:
            text = failure_text(error, of_handler=True)
            delivery.error = (name_of(error), text)
            asked_ms, final = None, policy.is_final or policy.gives_up_on(error)
            if not quiet:
                fields = {"error": name_of(error), "exception": text, "dead": dead or final}
                self.log("message_failed", delivery, **fields)
        if final:
            reason = "max_receives" if policy.is_final else "not_retried"
            self.end(delivery, BURIED, reason=reason)
            return
        delivery.delay_ms = (
            policy.delay_ms(envelope.nacks + 1, random.random) if asked_ms is None else asked_ms
        )
        self.end(delivery, NACKED)
        if dead:
            delivery.outcome = OUTCOME[BURIED]


def _own_limit(delivery: Delivery) -> int | None:
    """Max receives of a message or else of its task."""
    envelope = delivery.envelope()
    own = whole(envelope.flags.get("m")) if envelope and envelope.has_flags else None
    if own is not None:
        return own
    return delivery.task.task_options.max_receives if delivery.task is not None else None


def _checked_ms(delay_ms: object, least: int = 0, most: int = MAX_DELAY_MS) -> int:
    """Check a delay that a handler has set. Raises `InvalidOptionError`."""
    if type(delay_ms) is not int or not least <= delay_ms <= most:
        raise InvalidOptionError(
            "delay_ms", f"{shown(delay_ms)} is out of range", f"an int from {least} to {most}"
        )
    return delay_ms
