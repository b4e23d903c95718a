"""The loop of a child: has batches received, hands them to executors, and has it told how messages ended.

While one batch runs, the next one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qworker.client.commands.settling import Outcomes, Settled, settle
from qworker.consumer.board import Mark
from qworker.consumer.delivery import ACKED, DROPPED, LEFT
from qworker.consumer.events import acked_unstarted
from qworker.consumer.groups import Groups
from qworker.consumer.link import Abandoned
from qworker.consumer.telling import FLUSH_S, tell
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery
    from qworker.consumer.executors import Executor
    from qworker.consumer.fetching import Fetcher
    from qworker.consumer.hand import Hand
    from qworker.consumer.link import Link
    from qworker.consumer.measures import Measures
    from qworker.consumer.notifier import Notifier
    from qworker.consumer.runner import Runner
    from qworker.consumer.telling import Teller

__all__ = ["Broker", "BrokerOptions"]

_log = guarded(__name__)

#: A child looks this often whether it is to stop or has lost a lease, also while nothing happens.
_LOOK_S: Final = 0.5
#: How long it does nothing where there is nothing to wait for, because every queue is broken.
_NOTHING_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`burst`: end when nothing is ready. `max_messages`: end after so many; 0 is no limit."""

    burst: bool = False
    max_messages: int = 0


class Broker:
    """Moves messages between the server and the executors until it is told to stop."""

    def __init__(
        self,
        runner: Runner,
        executors: Sequence[Executor],
        *,
        hand: Hand,
        fetcher: Fetcher,
        teller: Teller,
        link: Link,
        notifier: Notifier,
        measures: Measures,
        options: BrokerOptions,
    ) -> None:
        self._runner = runner
        self._board = runner.board
        self._executors = executors
        self._slots = sum(executor.slots for executor in executors)
        self._hand = hand
        self._fetcher = fetcher
        self._teller = teller
        self._link = link
        self._notifier = notifier
        self._measures = measures
        self._options = options
        self._groups = Groups(runner)
        self._at_most_once = any(task.task_options.at_most_once for task in runner.tasks.values())
        #: One executor and nothing to be sorted: a batch goes over as it is.
        self._plain = len(executors) == 1 and not (self._groups.needed or self._at_most_once)
        #: Messages in the executors, and the calls that they make: a batch handler's messages are one call.
        self._running = 0
        self._calls = 0
        self._calls_of = [0] * len(executors)
        fetcher.calls = self._calls_of
        #: Calls that wait for a free slot of their executor, counted in the three above: one that runs at most once is
        #: acked when it starts, and those behind it keep their turn.
        self._lines: list[deque[Any]] = [deque() for _ in executors]
        #: Nothing has ended since all queues were looked at.
        self._looked_last = False
        self.stopping = False
        self.why_stopped = ""

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to stop (or, in a burst, until nothing is ready) and everything in hand has ended; once."""
        try:
            while not (self.stopping and self._is_over()):
                self._turn()
            self._end()
        except Abandoned:
            _log.warning("server_abandoned")
            # What still runs may end: its marks on the board tell the supervisor how.
            while self._board.running():
                self._notifier.sleep(_LOOK_S)
        finally:
            self._fetcher.close()
            self._notifier.close()

    def stop(self, why: str) -> None:
        """Take nothing new; `run` returns when what runs has ended. May be called from any thread."""
        if not self.stopping:
            self.why_stopped = why
            self.stopping = True
            self._notifier.wake()

    def coroutines(self) -> list[tuple[int, Any]]:
        """Slots of async handlers that run, and their coroutines. From any thread."""
        return [each for executor in self._executors for each in executor.coroutines()]

    def let_go(self, end: Callable[..., NoReturn]) -> None:
        """Make a forked copy of this process harmless: what is in hand, and the connections, are its parent's.

        `end` is called where a handler ends in the copy, with the delivery and the error if it fails; it ends the copy.
        """
        self._fetcher.let_go()
        self._runner.let_go(end)
        for executor in self._executors:
            executor.let_go()

    def _turn(self) -> None:
        ended = self._collect()
        self._look_at_board()
        if not self.stopping:
            self._fetch_more()
        started = self._start()
        ended += self._collect()
        self._tell(at_once=not self._running)
        self._sleep(progress=bool(ended or started))

    def _is_over(self) -> bool:
        self._collect()
        return not (self._start() or self._running)

    def _end(self) -> None:
        for executor in self._executors:
            executor.stop()
        self._fetcher.end()
        self._start()
        self._measures.write()
        self._teller.flush(last=True)

    # -- fetching ------------------------------------------------------------------------------

    def _fetch_more(self) -> None:
        collected = len(self._groups)
        arrived = len(self._fetcher.arrived)
        busy = self._calls + arrived
        idle = not busy and not collected
        most = None
        if self._options.max_messages:
            in_hand = self._running + collected + arrived
            most = self._options.max_messages - self._teller.started - in_hand
            if most <= 0:
                if idle:
                    self.stop("recycled")
                return
        if self._fetcher.more(busy, collected, most) or busy >= self._slots:
            return
        if self._options.burst:
            if idle and self._looked_last:
                self.stop("burst")
            elif idle:
                # What has ended since the last look may be ready again: a retry without delay.
                self._looked_last = True
                self._fetcher.look_again()
                self._fetcher.more(busy, collected, most)
        else:
            self._fetcher.begin_wait(idle=idle, most=most)

    # -- running -------------------------------------------------------------------------------

    def _start(self) -> int:
        """Hand what has arrived to the executors, or give it back when stopping; returns the number of messages."""
        fetcher, groups = self._fetcher, self._groups
        arrived = fetcher.arrived
        if not (arrived or groups or any(self._lines)):
            return 0
        if self.stopping:
            return self._give_all_back()
        if self._plain:
            fetcher.arrived = deque()
            self._count(0, arrived, 1)
            self._executors[0].submit(arrived)
            return len(arrived)
        work: dict[int, list[Any]] = {}
        while arrived:
            delivery = arrived.popleft()
            task = groups.read(delivery)
            if task is None or delivery.kind:
                self._teller.note(delivery)
            elif task.task_options.batch:
                groups.collect(delivery)
            else:
                self._add(work, delivery, delivery)
        for group in groups.ready():
            self._add(work, group[0], group)
        for number, items in work.items():
            self._count(number, items, 1)
            if self._at_most_once:
                self._lines[number] += items
            else:
                self._executors[number].submit(items)
        return sum(map(_messages, work.values())) + self._start_lines()

    def _start_lines(self) -> int:
        """Hand over what waits in line, as long as what runs at most once has a free slot; returns the messages."""
        work: dict[int, list[Any]] = {}
        once: list[Any] = []
        for number, line in enumerate(self._lines):
            free = self._free(number)
            items: list[Any] = []
            while line:
                if _is_once(line[0]):
                    if len(items) >= free:
                        break
                    once.append(line[0])
                items.append(line.popleft())
            if items:
                work[number] = items
        lost = self._ack_first(once) if once else ()
        started = 0
        for number, items in work.items():
            ended = [each for each in items if id(each) in lost]
            self._count(number, ended, -1)
            going = [each for each in items if id(each) not in lost]
            if going:
                started += _messages(going)
                self._executors[number].submit(going)
        return started

    def _free(self, number: int) -> int:
        """Slots of an executor that have nothing to do."""
        in_line = len(self._lines[number])
        return self._executors[number].slots - (self._calls_of[number] - in_line)

    def _can_start(self) -> bool:
        """Whether something in line could start now."""
        return any(line and self._free(number) > 0 for number, line in enumerate(self._lines))

    def _give_all_back(self) -> int:
        """Give back what has not started, because the child is to stop. What was acked has started."""
        for number, line in enumerate(self._lines):
            self._count(number, line, -1)
            for each in line:
                self._fetcher.arrived += each if isinstance(each, list) else (each,)
            line.clear()
        for group in self._groups.ready(flush=True):
            self._fetcher.arrived += group
        while self._fetcher.arrived:
            self._give_back(self._fetcher.arrived.popleft())
        return 0

    def _add(self, work: dict[int, list[Any]], delivery: Delivery, item: Any) -> None:
        assert delivery.task is not None
        number = 0
        if len(self._executors) > 1:
            is_async = delivery.task.is_async
            number = next(n for n, each in enumerate(self._executors) if each.is_async == is_async)
        work.setdefault(number, []).append(item)

    def _count(self, number: int, items: Sequence[Any], sign: int) -> None:
        """Count calls that were given to an executor (1), or taken from it again (-1)."""
        self._running += sign * _messages(items)
        self._calls += sign * len(items)
        self._calls_of[number] += sign * len(items)

    def _give_back(self, delivery: Delivery) -> None:
        if not delivery.kind:
            recalled = self._board.bytes[delivery.mark_at] == Mark.RECALLED
            delivery.kind = LEFT if recalled else DROPPED
            self._board.bytes[delivery.mark_at] = Mark.GONE
        self._teller.note(delivery)

    def _ack_first(self, items: Sequence[Any]) -> set[int]:
        """At most once: ack what starts now, in one trip; the `id`s of those of which no definite, counted reply came.

        No more than there are free slots: should the child die, only what ran is lost.
        """
        by_lease: dict[int, list[Delivery]] = {}
        lost: set[int] = set()
        for item in items:
            deliveries = item if isinstance(item, list) else [item]
            # Since it was read the lease may have run out, or the supervisor may have taken it back.
            if all(self._may_start(each) for each in deliveries):
                for each in deliveries:
                    by_lease.setdefault(each.lease.slot, []).append(each)
            else:
                lost.add(id(item))
                for each in deliveries:
                    self._give_back(each)
        begun = [self._begin_ack(deliveries) for deliveries in by_lease.values()]
        # In the trip of what is on its way already.
        self._fetcher.take_all()
        for deliveries in begun:
            self._finish_ack(deliveries)
        for item in items:
            deliveries = item if isinstance(item, list) else [item]
            if id(item) in lost or all(each.acked and not each.kind for each in deliveries):
                continue
            # A call of a batch handler goes on with those that are ours.
            ours = [each for each in deliveries if each.acked and not each.kind]
            for each in deliveries:
                if each.kind:
                    self._teller.note(each)
            if ours:
                self._running -= len(deliveries) - len(ours)
                item[:] = ours
                ours[0].member = False
            else:
                lost.add(id(item))
        return lost

    def _may_start(self, delivery: Delivery) -> bool:
        marks, runner = self._board.bytes, self._runner
        if not runner.mark_running(delivery, runner.clock()):
            return False
        marks[delivery.mark_at] = Mark.UNSTARTED
        return True

    def _begin_ack(self, deliveries: list[Delivery]) -> list[Delivery]:
        lease = deliveries[0].lease
        self._measures.learn(lease)
        outcomes = Outcomes(lease.id)
        # The script answers unique ones before the others.
        deliveries.sort(key=lambda each: each.unique_key() is None)
        for delivery in deliveries:
            delivery.kind = ACKED
            tell(delivery, outcomes)
        if lease.journal:
            outcomes.groups = acked_unstarted(deliveries)
        lease.partly = True
        self._link.begin(settle(lease.queue.keys, [outcomes], who=self._teller.who))
        return deliveries

    def _finish_ack(self, deliveries: Sequence[Delivery]) -> None:
        try:
            settled: Settled = self._link.finish()
        except QworkerError as error:
            queue = deliveries[0].lease.queue
            _log.error("ack_refused", queue=queue.name, error=str(error))
            for delivery in deliveries:
                delivery.kind = LEFT
            return
        for delivery, counted in zip(deliveries, settled.counted, strict=True):
            delivery.acked = True
            delivery.kind = "" if counted else LEFT
            # It is in no lease any more: nothing of it can be taken back, and until it starts it has not run.
            self._board.bytes[delivery.mark_at] = Mark.GONE

    # -- what has ended ------------------------------------------------------------------------

    def between(self, begun: float, now: float) -> float:
        """What the inline executor calls between handlers: tell in time, and look whether to stop.

        Returns the time from which on there is something to do again.
        """
        teller = self._teller
        since = teller.untold_since
        if since is None:
            teller.untold_since = since = begun
        if now - since <= FLUSH_S:
            return since + FLUSH_S
        self._collect()
        self._tell(at_once=True, though_fetching=True)
        self._look_at_board()
        return now

    def _collect(self) -> int:
        """Take what has ended from the executors; returns the number of messages."""
        ended = members = 0
        for number, executor in enumerate(self._executors):
            done = executor.done
            take, note = done.popleft, self._teller.note
            before = ended - members
            while done:
                delivery = take()
                note(delivery)
                ended += 1
                if delivery.member:
                    members += 1
            self._calls_of[number] -= ended - members - before
        if ended:
            self._running -= ended
            self._calls -= ended - members
            self._looked_last = False
        return ended

    def _tell(self, *, at_once: bool, though_fetching: bool = False) -> None:
        """Tell outcomes that have waited for 20 ms, or all there are if there is nothing better to do."""
        self._measures.write()
        due_s = self._teller.due_in()
        if due_s is None or (due_s > 0 and not at_once):
            return
        if self._fetcher.fetching:
            if not though_fetching:
                return  # its reply is near, and the next receive takes the outcomes along
            self._fetcher.take_all()
        self._teller.flush()

    # -- looking and sleeping ------------------------------------------------------------------

    def _look_at_board(self) -> None:
        if self._board.stop:
            self.stop("stopped")
        if not self._running:
            return
        for slot, lease in self._hand.leases.items():
            if not lease.cancelled and lease.lost:
                lease.cancelled = True
                for executor in self._executors:
                    executor.lost(slot)

    def _sleep(self, *, progress: bool) -> None:
        """Sleep until a reply, an ended handler or a deadline."""
        fetcher = self._fetcher
        descriptors = fetcher.descriptors()
        if not (descriptors or self._running or self._groups):
            if progress:
                return
            timeout_s = min(_NOTHING_S, fetcher.poll_in() or _NOTHING_S)
        else:
            timeout_s = self._timeout_s()
        self._notifier.going_to_sleep()
        if -1 in descriptors or fetcher.arrived or self._news() or self._can_start():
            timeout_s = 0.0
        ready = self._notifier.sleep(timeout_s, *(each for each in descriptors if each >= 0))
        fetcher.take(ready, busy=self._calls, collected=len(self._groups))

    def _news(self) -> bool:
        return any(executor.done for executor in self._executors)

    def _timeout_s(self) -> float:
        due_s = None if self._fetcher.fetching else self._teller.due_in()
        # Where nothing more can run, nothing more is asked for.
        poll_s = self._fetcher.poll_in() if self._calls < self._slots else None
        waits = (_LOOK_S, due_s, self._groups.due_in(), self._fetcher.deaf_s(), poll_s)
        return min(each for each in waits if each is not None)


def _messages(items: Iterable[Any]) -> int:
    """How many messages calls have; one for each but those of batch handlers."""
    return sum(len(each) if isinstance(each, list) else 1 for each in items)


def _is_once(item: Any) -> bool:
    """Whether a call is of a task whose messages run at most once."""
    task = (item[0] if isinstance(item, list) else item).task
    return bool(task.task_options.at_most_once)
