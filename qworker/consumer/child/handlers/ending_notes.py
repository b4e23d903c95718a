"""Ends of messages as they are noted: on the message, on the board, for the middleware and in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qworker.app.control import Interrupted
from qworker.consumer.board.counters import OUTCOMES
from qworker.consumer.board.states import Mark
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
from qworker.errors import UnknownKeyError
from qworker.telemetry.guarded import guarded
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.app.middleware import Middleware
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.handlers.unrunnable import Patience
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["OUTCOME", "EndingNotes", "ForkedMarks"]

_log = guarded(__name__)

#: By kind of ending, the index of the counter in `OUTCOMES`.
OUTCOME: Final = {
    ACKED: OUTCOMES.index("acked"),
    KEPT: OUTCOMES.index("acked"),
    NACKED: OUTCOMES.index("nacked"),
    BURIED: OUTCOMES.index("buried"),
    RELEASED: OUTCOMES.index("released"),
    LIMITED: OUTCOMES.index("released"),
    PARKED: OUTCOMES.index("released"),
    DISCARDED: OUTCOMES.index("discarded"),
    EXPIRED: OUTCOMES.index("expired"),
    CANCELLED: OUTCOMES.index("cancelled"),
}
#: What the supervisor does if the child dies before it has sent the outcome: ack, nack, or release uncounted.
_MARK: Final = {
    NACKED: Mark.FAILED,
    BURIED: Mark.FAILED,
    EXPIRED: Mark.FAILED,
    RELEASED: Mark.RELEASED,
    LIMITED: Mark.RELEASED,
    PARKED: Mark.RELEASED,
    DISCARDED: Mark.DONE,
    # It goes back, and its tombstone ends it there.
    CANCELLED: Mark.RELEASED,
    KEPT: Mark.SETTLING,
}


class ForkedMarks:
    """The marks of a board in a forked copy: to set one means that the copy's handler has ended."""

    def __init__(self, end: Callable[..., NoReturn]) -> None:
        self._end = end

    def __getitem__(self, at: int) -> int:
        return int(Mark.RECALLED)

    def __setitem__(self, at: int, mark: int) -> None:
        self._end()


class EndingNotes:
    """Notes how messages end."""

    def __init__(self, board: Board, middleware: Sequence[Middleware], patience: Patience) -> None:
        self._patience = patience
        self._marks: memoryview | ForkedMarks = board.bytes
        self._middleware = middleware
        self._throttle = LogThrottle()

    def end(self, delivery: Delivery, kind: str, reason: str = "") -> bool:
        """Note how a message ends; returns False."""
        delivery.kind = kind
        delivery.outcome = OUTCOME[kind]
        delivery.reason = reason
        # An ack by the supervisor would not announce the end.
        lost_with_child = kind == DISCARDED and delivery.awaited
        self._marks[delivery.mark_at] = Mark.SETTLING if lost_with_child else _MARK[kind]
        return False

    def put_back(self, delivery: Delivery, error: BaseException) -> None:
        """Put a run back, uncounted, that another worker continues: in its loop at once, with a key in a while."""
        if type(error) is Interrupted:
            self.end(delivery, RELEASED)
            self.log("run_interrupted", delivery, loop=text_of(error))
            return
        waited_ms = max(0, delivery.lease.now_ms - delivery.unknown_since_ms)
        pause = self._patience.pause_ms(waited_ms, is_run=True)
        problem, waited_s, is_dead = text_of(error), round(waited_ms / 1000, 1), pause is None
        held_back = 0 if is_dead else self._throttle.admit(f"key_unknown {problem}")
        if held_back is not None:
            more = {"held_back": held_back} if held_back else {}
            fields = {"error": problem, "waited_seconds": waited_s, "dead": is_dead, **more}
            self.log("key_unknown", delivery, **fields)
        if pause is None:
            delivery.error = (name_of(error), problem)
            self.end(delivery, BURIED, reason=UnknownKeyError.reason)
            return
        delivery.delay_ms = pause
        self.end(delivery, RELEASED, reason=UnknownKeyError.reason)

    def after(self, delivery: Delivery, error: BaseException | None) -> None:
        """Run the middleware's `after`; its errors are logged."""
        context = delivery.context()
        for middleware in reversed(self._middleware):
            try:
                middleware.after(context, OUTCOMES[delivery.outcome], error)
            except BaseException as problem:  # noqa: BLE001 - the message has ended already
                _log.error(
                    "middleware_failed",
                    middleware=type(middleware).__name__,
                    error=name_of(problem),
                    exception=failure_text(problem),
                )

    def within(self, context: Context | None, function: Callable[..., None], *args: Any) -> None:
        """Call a function in a context; in the caller's if that one cannot be entered."""
        if context is not None:
            try:
                context.run(function, *args)
                return
            except RuntimeError as error:
                _log.error("context_spoiled", error=text_of(error))
        function(*args)

    def log(self, event: str, delivery: Delivery, **fields: Any) -> None:
        """Log a warning about a message."""
        envelope = delivery.envelope()
        _log.warning(
            event,
            queue=delivery.lease.queue.name,
            task=delivery.task.name if delivery.task else None,
            message_id=envelope.id if envelope else None,
            receive_count=envelope.receives + 1 if envelope else None,
            **fields,
        )
