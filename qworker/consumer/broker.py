"""The loop of a child: has batches received, hands them to executors, and has it told how messages ended.

While one batch runs, the next one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

from qworker.client.commands.settling import Outcomes, Settled, settle
from qworker.consumer.board import Mark
from qworker.consumer.delivery import ACKED, DROPPED, LEFT
from qworker.consumer.events import acked_unstarted
from qworker.consumer.groups import Groups
from qworker.consumer.link import Abandoned
from qworker.consumer.telling import FLUSH_S, tell
from qworker.errors import QworkerError

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

_log = structlog.get_logger(__name__)

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
        if not arrived and not groups:
            return 0
        if self.stopping:
            return self._start_acked()
        if self._plain:
            fetcher.arrived = deque()
            self._submit(0, arrived, len(arrived))
            return len(arrived)
        if self._at_most_once:
            self._ack_first(arrived)
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
        return self._submit_all(work)

    def _start_acked(self) -> int:
        """Give back what has not started; but what was acked before its start (at most once) has to run now."""
        work: dict[int, list[Any]] = {}
        for group in self._groups.ready(flush=True):
            if group[0].acked:
                self._add(work, group[0], group)
            else:
                self._fetcher.arrived += group
        while self._fetcher.arrived:
            delivery = self._fetcher.arrived.popleft()
            if delivery.acked and not delivery.kind:
                self._add(work, delivery, delivery)
            else:
                self._give_back(delivery)
        return self._submit_all(work)

    def _add(self, work: dict[int, list[Any]], delivery: Delivery, item: Any) -> None:
        assert delivery.task is not None
        number = 0
        if len(self._executors) > 1:
            is_async = delivery.task.is_async
            number = next(n for n, each in enumerate(self._executors) if each.is_async == is_async)
        work.setdefault(number, []).append(item)

    def _submit_all(self, work: dict[int, list[Any]]) -> int:
        started = 0
        for number, items in work.items():
            messages = sum(len(each) if isinstance(each, list) else 1 for each in items)
            self._submit(number, items, messages)
            started += messages
        return started

    def _submit(self, number: int, items: Sequence[Any], messages: int) -> None:
        self._running += messages
        self._calls += len(items)
        self._calls_of[number] += len(items)
        self._executors[number].submit(items)

    def _give_back(self, delivery: Delivery) -> None:
        if not delivery.kind:
            recalled = self._board.bytes[delivery.mark_at] == Mark.RECALLED
            delivery.kind = LEFT if recalled else DROPPED
            self._board.bytes[delivery.mark_at] = Mark.GONE
        self._teller.note(delivery)

    def _ack_first(self, arrived: Sequence[Delivery]) -> None:
        """At most once: ack before the start, and start only what a definite, counted reply says was ours."""
        self._fetcher.take_all()
        by_lease: dict[int, list[Delivery]] = {}
        for delivery in list(arrived):
            task = self._groups.read(delivery)
            if task is not None and task.task_options.at_most_once:
                by_lease.setdefault(delivery.lease.slot, []).append(delivery)
        for deliveries in by_lease.values():
            lease = deliveries[0].lease
            outcomes = Outcomes(lease.id)
            # The script answers unique ones before the others.
            deliveries.sort(key=lambda each: each.unique_key() is None)
            for delivery in deliveries:
                delivery.kind = ACKED
                tell(delivery, outcomes)
            if lease.journal:
                outcomes.groups = acked_unstarted(deliveries)
            lease.partly = True
            command = settle(lease.queue.keys, [outcomes], who=self._teller.who)
            try:
                settled: Settled = self._link.call(command)
            except QworkerError as error:
                _log.error("ack_refused", queue=lease.queue.name, error=str(error))
                for delivery in deliveries:
                    delivery.kind = LEFT
                continue
            for delivery, counted in zip(deliveries, settled.counted, strict=True):
                delivery.acked = True
                delivery.kind = "" if counted else LEFT
                # Nothing of it can be taken back any more.
                self._board.bytes[delivery.mark_at] = Mark.DONE

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
        if -1 in descriptors or fetcher.arrived or self._news():
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
