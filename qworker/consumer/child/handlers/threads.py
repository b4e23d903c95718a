"""Runs sync handlers on a fixed set of threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from qworker.app.context import running
from qworker.consumer.board.crash import named
from qworker.consumer.child.handlers.batch_tasks import run_group
from qworker.consumer.child.handlers.executor import first_of, lose_unended
from qworker.consumer.failure import failure_text, name_of
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.handlers.executor import Between
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Threads"]

_log = guarded(__name__)


class Threads:
    """Runs calls on `slots` threads, and calls `notify` as they end."""

    def __init__(
        self, runner: Runner, first_slot: int, slots: int, notify: Callable[[], None]
    ) -> None:
        self.is_async = False
        self.slots = slots
        self.done: deque[Delivery] = deque()
        self._runner = runner
        self._first_slot = first_slot
        self._notify = notify
        #: Calls, and a token for each: a waiting thread holds no call that could be lost with its wait.
        self._calls: deque[Any] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._context = copy_context()

    def start(self, between: Between) -> None:
        """Start the threads."""
        for slot in range(self._first_slot, self._first_slot + self.slots):
            threading.Thread(
                # A thread begins with its own empty context.
                target=self._context.copy().run,
                args=(named(Threads._run, slot), self, slot),
                name=f"qworker-handler-{slot}",
                daemon=True,
            ).start()

    def submit(self, calls: Sequence[Any]) -> None:
        """Hand calls to the threads."""
        self._calls.extend(calls)
        for _ in calls:
            self._tokens.put(None)

    def cancel_lease(self, lease_slot: int) -> None:
        """Do nothing: a thread cannot be interrupted."""

    def stop(self) -> None:
        """End idle threads."""
        self._stopped = True
        for _ in range(self.slots):
            self._tokens.put(None)
        self._runner.awaiter.close()

    def join(self) -> None:
        """Do nothing: threads that end leave nothing open."""

    def detach(self) -> None:
        """Do nothing: only the thread that forks is in the copy."""

    def coroutines(self) -> list[tuple[int, Any]]:
        """None: handlers have threads."""
        return []

    def _run(self, slot: int) -> None:
        while not self._stopped:
            current: list[Any] = []
            try:
                self._run_calls(slot, current)
            except BaseException as error:  # noqa: BLE001
                # Thrown into this thread from outside: a time-out of some library, after its handler has ended.
                _log.error(
                    "handler_slot_broken", error=name_of(error), exception=failure_text(error)
                )
                if current and not first_of(current[0]).started:
                    self._calls.appendleft(current.pop())
                self._tokens.put(None)  # one may have been taken; one too many does no harm
                self.done.extend(lose_unended(self._runner, slot, current, error))
                self._notify()

    def _run_calls(self, slot: int, current: list[Any]) -> None:
        """Run calls until the end; `current` holds the one that runs."""
        wait, take, notify = self._tokens.get, self._calls.popleft, self._notify
        runner, done = self._runner, self.done
        while True:
            wait()
            try:
                current.append(take())
            except IndexError:
                if self._stopped:
                    return
                continue
            call = current[0]
            if isinstance(call, list):
                run_group(runner, slot, call)
                done.extend(call)
            else:
                runner.run(slot, call, runner.clock())
                done.append(call)
            current.clear()
            running.set(None)
            notify()
