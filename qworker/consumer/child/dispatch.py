"""Hands messages that have arrived to executors, and collects those that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qworker.consumer.child.at_most_once import is_at_most_once
from qworker.consumer.child.handlers.batches import Groups
from qworker.consumer.child.handlers.inline import Inline

if TYPE_CHECKING:
    from qworker.consumer.child.at_most_once import AckFirst
    from qworker.consumer.child.handlers.executor import Executor
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.receive.fetch import Fetcher
    from qworker.consumer.child.settle.ack_buffer import AckBuffer

__all__ = ["Dispatcher"]


class Dispatcher:
    """Starts calls of handlers: one delivery each, or the deliveries of a batch as a list.

    `running` counts the messages that executors have, `calls` the calls.
    """

    def __init__(
        self,
        runner: Runner,
        executors: Sequence[Executor],
        fetcher: Fetcher,
        ack_buffer: AckBuffer,
        ack_first: AckFirst,
    ) -> None:
        self.executors = executors
        self.slots = sum(executor.slots for executor in executors)
        #: Handlers run in the broker's own thread: while one does, nothing is sent.
        self.inline = any(isinstance(executor, Inline) for executor in executors)
        self.groups = Groups(runner)
        self.running = 0
        self.calls = 0
        self._calls_of = [0] * len(executors)
        fetcher.planner.calls = self._calls_of
        self._receiver = fetcher.receiver
        self._ack_buffer = ack_buffer
        self._ack_first = ack_first
        self._at_most_once = any(task.task_options.at_most_once for task in runner.tasks.values())
        #: One executor and nothing to sort: a batch goes there as it is.
        self.plain = len(executors) == 1 and not (self.groups.needed or self._at_most_once)
        #: `start` runs all that has arrived, to its end.
        self.runs_at_once = self.plain and self.inline
        #: By executor, calls that wait for a free slot; they are counted above. A call that runs at most once is acked
        #: when it starts, and those behind it keep their turn.
        self._waiting: list[deque[Any]] = [deque() for _ in executors]

    @property
    def has_work(self) -> bool:
        """Whether messages have arrived that were not handed over yet."""
        return bool(self._receiver.arrived or self.groups or any(self._waiting))

    def start(self) -> int:
        """Hand received messages to the executors; returns their number."""
        if not self.has_work:
            return 0
        arrived = self._receiver.take_arrived()
        if self.plain:
            self._count(0, arrived, 1)
            self.executors[0].submit(arrived)
            return len(arrived)
        calls = self._read(arrived)
        for number, of_executor in calls.items():
            self._count(number, of_executor, 1)
            if self._at_most_once:
                self._waiting[number] += of_executor
            else:
                self.executors[number].submit(of_executor)
        return sum(map(_messages, calls.values())) + self._start_waiting()

    def give_back(self) -> None:
        """Give back unstarted messages. Acked ones count as started."""
        unstarted = [*self._receiver.take_arrived()]
        for number, waiting in enumerate(self._waiting):
            self._count(number, waiting, -1)
            for call in waiting:
                unstarted += call if isinstance(call, list) else (call,)
            waiting.clear()
        for group in self.groups.ready(flush=True):
            unstarted += group
        for delivery in unstarted:
            self._ack_buffer.give_back(delivery)

    def collect(self) -> int:
        """Take ended messages from the executors; returns their number."""
        ended = members = 0
        for number, executor in enumerate(self.executors):
            done = executor.done
            take, note = done.popleft, self._ack_buffer.note
            before = ended - members
            while done:
                delivery = take()
                note(delivery)
                ended += 1
                if delivery.member:
                    members += 1
            self._calls_of[number] -= ended - members - before
        self.running -= ended
        self.calls -= ended - members
        return ended

    def is_due(self) -> bool:
        """Whether there is something to start or to collect now."""
        return (
            bool(self._receiver.arrived)
            or any(executor.done for executor in self.executors)
            or any(
                waiting and self._free(number) > 0 for number, waiting in enumerate(self._waiting)
            )
        )

    def _read(self, arrived: Iterable[Delivery]) -> dict[int, list[Any]]:
        """Make calls of received messages, by executor; messages of batch tasks are collected first."""
        calls: dict[int, list[Any]] = {}
        for delivery in arrived:
            task = self.groups.read(delivery)
            if task is None or delivery.kind:
                self._ack_buffer.note(delivery)
            elif task.task_options.batch:
                self.groups.collect(delivery)
            else:
                calls.setdefault(self._executor_of(delivery), []).append(delivery)
        for group in self.groups.ready():
            calls.setdefault(self._executor_of(group[0]), []).append(group)
        return calls

    def _executor_of(self, delivery: Delivery) -> int:
        if len(self.executors) == 1:
            return 0
        assert delivery.task is not None
        is_async = delivery.task.is_async
        return next(
            number
            for number, executor in enumerate(self.executors)
            if executor.is_async == is_async
        )

    def _start_waiting(self) -> int:
        """Hand over waiting calls, as long as those that run at most once get a free slot; returns the messages.

        No more of them are acked than can start: should the child die, only what ran is lost.
        """
        work: dict[int, list[Any]] = {}
        acked: list[Any] = []
        for number, waiting in enumerate(self._waiting):
            free = self._free(number)
            calls: list[Any] = []
            while waiting:
                if is_at_most_once(waiting[0]):
                    if len(calls) >= free:
                        break
                    acked.append(waiting[0])
                calls.append(waiting.popleft())
            if calls:
                work[number] = calls
        before = _messages(acked)
        lost = self._ack_first.ack(acked) if acked else ()
        self.running -= before - _messages(acked)
        started = 0
        for number, calls in work.items():
            self._count(number, [call for call in calls if id(call) in lost], -1)
            starting = [call for call in calls if id(call) not in lost]
            if starting:
                started += _messages(starting)
                self.executors[number].submit(starting)
        return started

    def _free(self, number: int) -> int:
        """Slots of an executor that have nothing to do."""
        running = self._calls_of[number] - len(self._waiting[number])
        return self.executors[number].slots - running

    def _count(self, number: int, calls: Sequence[Any], sign: int) -> None:
        """Count calls that an executor has got (1), or that were taken from it (-1)."""
        self.running += sign * _messages(calls)
        self.calls += sign * len(calls)
        self._calls_of[number] += sign * len(calls)


def _messages(calls: Iterable[Any]) -> int:
    """How many messages calls have: one each, apart from those of batch handlers."""
    return sum(len(call) if isinstance(call, list) else 1 for call in calls)
