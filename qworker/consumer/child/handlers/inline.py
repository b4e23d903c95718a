"""Runs sync handlers one after the other in the broker's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qworker.app.context import running
from qworker.consumer.child.handlers.batch_tasks import run_group

if TYPE_CHECKING:
    from qworker.consumer.child.handlers.executor import Between
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Inline"]


class Inline:
    """Runs all calls at once when they are submitted."""

    def __init__(self, runner: Runner, slot: int) -> None:
        self.is_async = False
        self.slots = 1
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._slot = slot
        self._between: Between

    def start(self, between: Between) -> None:
        """Call `between` after a handler."""
        self._between = between

    def submit(self, calls: Sequence[Any]) -> None:
        """Run all of them now."""
        runner, slot, run = self._runner, self._slot, self._runner.run
        done, append = self.done, self.done.append
        begun = now = runner.clock()
        due, left, lease = 0.0, len(calls), None
        try:
            for call in calls:
                is_group = isinstance(call, list)
                of_call = (call[0] if is_group else call).lease
                if of_call is not lease:
                    if lease is not None and of_call.queue.pace.mean_s is None:
                        # What has ended does not wait for a handler that may take long.
                        running.set(None)
                        due = self._between(begun, now, last=False, at_once=True)
                        now = runner.clock()
                    lease = of_call
                begun, left = now, left - 1
                if is_group:
                    run_group(runner, slot, call)
                    done.extend(call)
                    now = runner.clock()
                else:
                    now = run(slot, call, now)
                    append(call)
                if now > due:
                    running.set(None)
                    due = self._between(begun, now, last=not left)
                    # It may have waited for the server, for longer than the lease of the next call lasts.
                    now = runner.clock()
        finally:
            running.set(None)

    def cancel_lease(self, lease_slot: int) -> None:
        """Do nothing: the handler has the thread."""

    def stop(self) -> None:
        """Close the awaiter; nothing runs between two submits."""
        self._runner.awaiter.close()

    def join(self) -> None:
        """Do nothing: `stop` has waited."""

    def detach(self) -> None:
        """Do nothing: no other handler runs in the thread."""

    def coroutines(self) -> list[tuple[int, Any]]:
        """None: handlers have the thread."""
        return []
