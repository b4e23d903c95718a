"""Finds the task and the arguments of a message, or how it ends without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.app.arguments.calls import Calls
from qworker.consumer.child.handlers.unrunnable import pause_of_paused_ms
from qworker.consumer.child.leases.ending_kinds import BURIED, RELEASED
from qworker.consumer.failure import MAX_CHARACTERS
from qworker.errors import InvalidError, NoResultError, ProtectionError, UnknownKeyError
from qworker.telemetry.throttle import LogThrottle
from qworker.wire import codec
from qworker.wire.envelope import FIRST, Envelope
from qworker.wire.keyring import is_encrypted

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.handlers.endings import Endings
    from qworker.consumer.child.handlers.unrunnable import Patience
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Preparer"]


class Preparer:
    """Prepares deliveries. `numbers`: task name → its number on the board."""

    def __init__(
        self,
        tasks: dict[str, Task[..., Any]],
        numbers: dict[str, int],
        board: Board,
        endings: Endings,
        *,
        patience: Patience,
        clock: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._numbers = numbers
        self._orders = board.orders
        self._words = board.words
        self._paused_word = board.orders.paused_word
        self._endings = endings
        self._patience = patience
        self._clock = clock
        self._throttle = LogThrottle()
        self._read = Calls({task.signature: task for task in tasks.values()}).read

    def prepare(self, delivery: Delivery) -> bool:
        """Find task and arguments; False if the message has ended without them. Raises nothing."""
        item = delivery.item
        first = delivery.first = FIRST.match(item)
        if first is None:
            return self._prepare_again(delivery)
        body = item[first.end() :]
        call = self._read(body)
        if call is None:
            return self._prepare_body(delivery, body)
        delivery.task, delivery.args = call
        return not self._words[self._paused_word] or self._goes_on(delivery)

    def _prepare_again(self, delivery: Delivery) -> bool:
        """Prepare a message that is not the first delivery of one of ours."""
        envelope = delivery.envelope()
        if envelope is None:
            return self._endings.end(delivery, BURIED, reason="foreign")
        if is_encrypted(envelope):
            return self._prepare_encrypted(delivery, envelope)
        return self._prepare_body(delivery, envelope.body)

    def _prepare_encrypted(self, delivery: Delivery, envelope: Envelope) -> bool:
        """Leave a message to workers that have its key, without reading its body."""
        problem = "is encrypted, and no key is held here (QWORKER_KEYS_FILE)"
        name = delivery.lease.queue.name
        return self.unknown_key(delivery, UnknownKeyError(name, envelope.id, problem))

    def _prepare_body(self, delivery: Delivery, body: bytes) -> bool:
        """Prepare a call by name, or report why the body is invalid."""
        try:
            call = codec.decode_call(body)
        except InvalidError as error:
            return self.bad_arguments(delivery, error)
        task = self._tasks.get(call.task)
        if task is None:
            return self._unknown_task(delivery, call.task)
        delivery.task = task
        delivery.then = call.then
        if call.then and task.result_type is None:
            return self._no_result(delivery)
        if delivery.first is None and self._endings.is_spent(delivery):
            return self._endings.end(delivery, BURIED, reason="max_receives")
        try:
            if call.gather:
                # The values that go before these arguments are read when the handler starts.
                delivery.gather = call.gather
                delivery.kwargs = {"args": call.args, "kwargs": call.kwargs}
            else:
                delivery.args, delivery.kwargs = task.signature.decode(call.args, call.kwargs)
        except InvalidError as error:
            return self.bad_arguments(delivery, error)
        except BaseException as error:  # noqa: BLE001 - code of the task's own types
            self._endings.fail(delivery, error)
            return False
        return not self._words[self._paused_word] or self._goes_on(delivery)

    def _goes_on(self, delivery: Delivery) -> bool:
        """Put the message of a paused task back, uncounted; True if its task is not paused."""
        task = delivery.task
        assert task is not None
        since = self._orders.paused_since(self._numbers[task.name])
        if since is None:
            return True
        if (suppressed := self._throttle.admit(f"paused {task.name}")) is not None:
            more = {"held_back": suppressed} if suppressed else {}
            self._endings.log("task_paused", delivery, **more)
        delivery.delay_ms = pause_of_paused_ms(round((self._clock() - since) * 1000))
        return self._endings.end(delivery, RELEASED)

    def rejected(self, delivery: Delivery, error: ProtectionError) -> bool:
        """Bury a message whose signature or encryption is wrong."""
        delivery.error = (type(error).__name__, error.problem)
        self._endings.log("message_rejected", delivery, reason=error.reason, error=error.problem)
        return self._endings.end(delivery, BURIED, reason=error.reason)

    def unknown_key(self, delivery: Delivery, error: UnknownKeyError) -> bool:
        """Put a message back whose key another worker may have."""
        delivery.error = (type(error).__name__, error.problem)
        return self._wait_elsewhere(delivery, error.reason, "key_unknown", error=error.problem)

    def bad_arguments(self, delivery: Delivery, error: InvalidError) -> bool:
        """Bury a message whose arguments do not fit."""
        delivery.error = (type(error).__name__, str(error)[:MAX_CHARACTERS])
        self._endings.log("message_rejected", delivery, reason="bad_arguments", error=str(error))
        return self._endings.end(delivery, BURIED, reason="bad_arguments")

    def _no_result(self, delivery: Delivery) -> bool:
        """Bury a step of a chain whose value would not reach the next one."""
        problem = 'keeps no results here, but others wait for its value; declare it with result="1h" and redrive it'
        delivery.error = (NoResultError.__name__, problem)
        self._endings.log("message_rejected", delivery, reason="bad_result", error=problem)
        return self._endings.end(delivery, BURIED, reason="bad_result")

    def _unknown_task(self, delivery: Delivery, name: str) -> bool:
        delivery.error = ("UnknownTaskError", f"no task is named {name[:200]!r}")
        return self._wait_elsewhere(delivery, "unknown_task", "task_unknown", name=name[:200])

    def _wait_elsewhere(self, delivery: Delivery, reason: str, event: str, **fields: Any) -> bool:
        """Put a message back, uncounted, that a worker of another version may know; dead once that takes too long.

        Logged once a minute for each task or key: thousands of messages may wait.
        """
        waited_ms = max(0, delivery.lease.now_ms - delivery.unknown_since_ms)
        pause = self._patience.pause_ms(waited_ms, is_run=delivery.is_run)
        # A death is always logged: it happens once to a message.
        suppressed = 0 if pause is None else self._throttle.admit(f"{event} {fields}")
        if suppressed is not None:
            more = {"held_back": suppressed} if suppressed else {}
            waited_s = round(waited_ms / 1000, 1)
            dead = pause is None
            self._endings.log(event, delivery, **fields, waited_seconds=waited_s, dead=dead, **more)
        if pause is None:
            return self._endings.end(delivery, BURIED, reason=reason)
        delivery.delay_ms = pause
        return self._endings.end(delivery, RELEASED, reason=reason)
