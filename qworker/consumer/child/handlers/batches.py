"""Collects the messages of batch tasks until a batch is full or has waited long enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qworker.consumer.board.states import Mark

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Groups"]


class Groups:
    """The waiting messages of each batch task."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: dict[str, list[Delivery]] = {}
        self._since: dict[str, float] = {}
        #: Whether the app has batch tasks at all; the others pay nothing.
        self.needed = any(task.task_options.batch for task in runner.tasks.values())

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def read(self, delivery: Delivery) -> Task[..., Any] | None:
        """Find the task of a delivery before it begins; None if the message has ended, because it cannot be read."""
        if delivery.task is None and not delivery.kind:
            runner, marks = self._runner, self._runner.board.bytes
            if not runner.mark_running(delivery, runner.clock()) or not runner.prepare(delivery):
                return None
            # Read, but not begun: if the child dies now, this message is not to blame.
            marks[delivery.mark_at] = Mark.UNSTARTED
        return delivery.task

    def collect(self, delivery: Delivery) -> None:
        """Take a delivery of a batch task, after `read`."""
        assert delivery.task is not None
        name = delivery.task.name
        group = self._waiting.setdefault(name, [])
        if not group:
            self._since[name] = self._runner.clock()
        group.append(delivery)

    def ready(self, *, flush: bool = False) -> Iterator[list[Delivery]]:
        """Yield and forget the groups that are full or have waited long enough; with `flush` all."""
        for group in self._ready(flush=flush):
            for delivery in group[1:]:
                delivery.member = True
            yield group

    def _ready(self, *, flush: bool) -> Iterator[list[Delivery]]:
        now = self._runner.clock()
        for name in list(self._waiting):
            group = self._waiting[name]
            options = self._runner.tasks[name].task_options
            size = options.batch or 1
            while len(group) >= size:
                yield group[:size]
                del group[:size]
                self._since[name] = now
            if group and (flush or now >= self._since[name] + options.max_wait_ms / 1000):
                yield group[:]
                group.clear()
            if not group:
                del self._waiting[name]

    def due_in(self) -> float | None:
        """Seconds until a group has waited long enough; None without any."""
        if not self._waiting:
            return None
        now = self._runner.clock()
        return max(
            0.0,
            min(
                self._since[name] + self._runner.tasks[name].task_options.max_wait_ms / 1000 - now
                for name in self._waiting
            ),
        )
