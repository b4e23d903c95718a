"""Executors of handlers: in the broker's own thread, in threads, or on an event loop.

Every handler runs in the context that the app was imported in, and does not see what others bind to context variables
(structlog's fields among them). Each plain function gets a copy of the context, which costs less than a tenth of a
microsecond. Coroutines share the context of a worker on the loop, and a new worker takes its place as soon as a handler
has left something in it: a task per message would cost two microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Between", "Executor", "first_of", "lose_unended"]


class Between(Protocol):
    """Called after a handler in the broker's own thread, with the times when it began and ended.

    `last`: it was the last one of its submit; `at_once`: the next one may take long. Returns the time from which to
    call it again.
    """

    def __call__(self, begun: float, now: float, *, last: bool, at_once: bool = False) -> float:
        """Send outcomes that are due."""


class Executor(Protocol):
    """Runs calls: deliveries, or lists of them for batch handlers.

    `slots` calls may run at a time, each in a running slot of the board. `done` is filled as deliveries end, and the
    broker is notified.
    """

    is_async: bool
    slots: int
    done: deque[Delivery]

    def start(self, between: Between) -> None:
        """Get ready to run calls; `between` is for an executor in the broker's own thread, see `Inline`."""

    def submit(self, calls: Sequence[Any]) -> None:
        """Take calls; returns at once, apart from `Inline`."""

    def cancel_lease(self, lease_slot: int) -> None:
        """Cancel the async handlers of a lost lease."""

    def stop(self) -> None:
        """Take no more calls; the broker has waited for those that ran."""

    def join(self) -> None:
        """Wait for the end of what `stop` has begun."""

    def detach(self) -> None:
        """Run no further handler in a forked copy of this process."""

    def coroutines(self) -> list[tuple[int, Any]]:
        """Slots of handlers that may wait on an event loop, and their coroutines. From any thread."""


def first_of(call: Any) -> Delivery:
    """The delivery of a call, the first one of a batch."""
    first: Delivery = call[0] if isinstance(call, list) else call
    return first


def lose_unended(
    runner: Runner, slot: int, calls: Sequence[Any], error: BaseException
) -> list[Delivery]:
    """End the calls in a slot after an error that is not the handler's; returns those that had not ended."""
    lost = []
    for call in calls:
        for delivery in call if isinstance(call, list) else [call]:
            if not delivery.kind:
                runner.endings.lose(delivery, error)
                lost.append(delivery)
        runner.board.running.end(slot)
    return lost
