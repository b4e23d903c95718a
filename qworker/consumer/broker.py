"""The loop of a child: receives batches, hands them to executors, tells the server how messages ended.

One connection settles and fetches: outcomes ride on the next receive of their queue, or are flushed after 20 ms. A
second connection waits on empty queues, so that a wait never delays a settle. While one batch runs the next one is
on its way.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.commands.command import Command
from qworker.commands.receiving import PAUSED, Batch, Outcomes, Settled, Suspects
from qworker.commands.receiving import settle as settle_outcomes
from qworker.commands.receiving import settle_receive
from qworker.consumer.board import Mark, boot_time
from qworker.consumer.delivery import Delivery, Lease
from qworker.consumer.groups import Groups
from qworker.consumer.link import Link
from qworker.consumer.runner import DROPPED, tell
from qworker.errors import BrokenQueueError, InvalidOptionError, LeaseUsedError, RefusedError

if TYPE_CHECKING:
    from qworker.consumer.board import Board
    from qworker.consumer.executors import Executor
    from qworker.consumer.measures import Measures
    from qworker.consumer.pace import QueuePace
    from qworker.consumer.runner import Runner
    from qworker.ids import IdSource

__all__ = ["Broker", "BrokerOptions", "Notifier"]

_log = structlog.get_logger(__name__)

_FLUSH_S: Final = 0.02
_BLOCK_S: Final = 2.0
#: While something runs, a child looks this often whether it is to stop or has lost a lease.
_LOOK_S: Final = 0.5
_BROKEN_PAUSE_S: Final = 5.0
#: A queue that was empty is asked again so soon while others are busy.
_LOOK_AGAIN_S: Final = 0.05
#: Every so many receives a child that may take suspects takes one first.
_SUSPECT_TURN: Final = 4


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`takes_suspects`: this child may take suspects before others. `burst`: end when nothing is ready.

    `max_messages` 0: no limit. `weighted`: queues are tried in random order by weight, else strictly in order.
    """

    takes_suspects: bool = True
    burst: bool = False
    max_messages: int = 0
    weighted: bool = False
    visibility_ms: int | None = None


class Notifier:
    """Wakes the broker out of its wait, from any thread; free while the broker is awake."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.sleeping = False

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._reader.fileno()

    def __call__(self) -> None:
        """Wake the broker."""
        if self.sleeping:
            self.sleeping = False
            try:
                self._writer.send(b"!")
            except BlockingIOError:
                return  # it is being woken already

    def clear(self) -> None:
        """Forget the wakes so far."""
        self.sleeping = False
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            return


@dataclass(slots=True)
class _Fetch:
    """A receive on its way: its lease slot, and the leases whose outcomes went along."""

    queue: QueuePace
    slot: int
    lease_id: str
    visibility_s: float
    begun: float
    told: list[tuple[Lease, int]]


class Broker:
    """Moves messages between the server and the executors until it is told to stop."""

    def __init__(
        self,
        queues: Sequence[QueuePace],
        runner: Runner,
        choose: Callable[[Delivery], Executor],
        executors: Sequence[Executor],
        *,
        ids: IdSource,
        link: Link,
        wait_link: Link,
        notifier: Notifier,
        measures: Measures,
        options: BrokerOptions,
    ) -> None:
        self._queues = list(queues)
        self._by_name = {queue.name: queue for queue in queues}
        self._runner = runner
        self._board: Board = runner.board
        self._choose = choose
        self._executors = executors
        self._slots = sum(executor.slots for executor in executors)
        self._ids = ids
        self._link = link
        self._wait_link = wait_link
        self._notifier = notifier
        self._measures = measures
        self._options = options
        self._groups = Groups(runner)
        self._at_most_once = any(task.task_options.at_most_once for task in runner.tasks.values())
        self._plain = len(executors) == 1 and not (self._groups.needed or self._at_most_once)
        self._leases: dict[int, Lease] = {}
        self._free_slots = deque(range(self._board.leases))
        self._local: deque[Delivery] = deque()
        self._running = 0
        self._fetch: _Fetch | None = None
        self._waiting: _Fetch | None = None
        self._wait_until = 0.0
        self._untold_since: float | None = None
        self._handled = 0
        self._alone = False
        self._broken_until: dict[str, float] = {}
        self._empty_until: dict[str, float] = {}
        self._known_stopping = False
        self.stopping = False
        self.why_stopped = ""

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to stop (or, in a burst, until nothing is ready) and everything in hand has ended."""
        while True:
            self._collect()
            self._look_at_board()
            if self.stopping:
                self._give_back_unstarted()
                if not self._running:
                    break
            else:
                self._fetch_more()
            self._start_local()
            self._collect()
            self._flush(idle=not self._local and not self._running)
            if self.stopping and not self._running and not self._local:
                break
            self._wait_event()
        self._end()

    def stop(self, why: str) -> None:
        """Take nothing new; `run` returns when what runs has ended. May be called from any thread."""
        if not self.stopping:
            self.why_stopped = why
            self.stopping = True
            self._notifier.sleeping = True
            self._notifier()

    def _end(self) -> None:
        for executor in self._executors:
            executor.stop()
        self._wait_link.drop()
        if self._fetch is not None:
            self._take_fetch()
            self._give_back_unstarted()
        self._flush(idle=True, force=True)
        if self._waiting is not None:
            # The wait was cut off. If its lease came to be after all, the supervisor finds it on the board.
            self._waiting = None

    # -- fetching ------------------------------------------------------------------------------

    def _in_hand(self) -> int:
        return len(self._local) + self._running + len(self._groups)

    def _fetch_more(self) -> None:
        if self._fetch is not None or self._alone or not self._free_slots:
            return
        if self._options.max_messages:
            left = self._options.max_messages - self._handled - self._in_hand()
            if left <= 0:
                if not self._in_hand():
                    self.stop("recycled")
                return
        in_hand = self._in_hand()
        if not in_hand:
            for each in self._queues:
                if each.suspects:
                    self._empty_until.pop(each.name, None)
        queue = self._next_queue()
        if queue is None:
            if in_hand == 0 and self._waiting is None:
                if self._options.burst:
                    self.stop("burst")
                else:
                    self._begin_wait()
            elif self._waiting is None and in_hand < self._slots:
                self._begin_wait()
            return
        if self._waiting is not None:
            return
        count = queue.want(in_hand, self._slots, self._board.peers)
        if count and self._options.max_messages:
            count = min(count, left)
        if count:
            self._begin_fetch(queue, count, in_hand)

    def _next_queue(self) -> QueuePace | None:
        """The first queue, strictly or by weight, that is not known to be empty or broken."""
        now = time.monotonic()
        queues = self._queues
        if self._options.weighted and len(queues) > 1:
            queues = sorted(queues, key=lambda each: -(random.random() ** (1 / each.weight)))  # noqa: S311
        for queue in queues:
            until = max(
                self._empty_until.get(queue.name, 0.0), self._broken_until.get(queue.name, 0.0)
            )
            if until <= now:
                return queue
        return None

    def _suspects(self, queue: QueuePace, in_hand: int) -> Suspects:
        """Suspects are taken only by a child that runs nothing else."""
        if in_hand or self._waiting is not None:
            return Suspects.NEVER
        if self._options.takes_suspects and queue.receives % _SUSPECT_TURN == _SUSPECT_TURN - 1:
            return Suspects.FIRST
        return Suspects.IF_NOTHING_ELSE

    def _begin_fetch(self, queue: QueuePace, count: int, in_hand: int) -> None:
        if queue.suspects and self._options.takes_suspects and in_hand:
            # A suspect waits and it is time for one: let what is in hand end first.
            if queue.receives % _SUSPECT_TURN == _SUSPECT_TURN - 1:
                return
        told, outcomes = self._take_outcomes(queue)
        self._fetch = self._enter(queue, told)
        queue.receives += 1
        self._link.begin(
            settle_receive(
                queue.keys,
                self._fetch.lease_id,
                count,
                outcomes=outcomes,
                visibility_ms=self._options.visibility_ms,
                suspects=self._suspects(queue, in_hand),
            )
        )

    def _enter(self, queue: QueuePace, told: list[tuple[Lease, int]]) -> _Fetch:
        """Put a new lease on the board, before the call that may create it."""
        slot = self._free_slots.popleft()
        lease_id = self._ids.lease_id()
        self._board.enter_lease(slot, lease_id, queue.index, queue.visibility_s)
        return _Fetch(queue, slot, lease_id, queue.visibility_s, boot_time(), told)

    def _take_fetch(self) -> None:
        fetch, self._fetch = self._fetch, None
        assert fetch is not None
        batch = self._finish(self._link, fetch)
        if batch is not None:
            self._settled(fetch.told, batch.settled)
            self._take_batch(fetch, batch)
        else:
            # Refused: what went along was not settled either, and is told again alone.
            self._leave(fetch)

    def _finish(self, link: Link, fetch: _Fetch) -> Batch | None:
        try:
            batch: Batch = link.finish()
        except BrokenQueueError as error:
            self._mark_broken(fetch.queue, error)
        except LeaseUsedError as error:
            _log.error("lease_id_used", queue=fetch.queue.name, error=str(error))
        except InvalidOptionError as error:
            _log.error("receive_refused", queue=fetch.queue.name, error=str(error))
            self._broken_until[fetch.queue.name] = time.monotonic() + _BROKEN_PAUSE_S
        else:
            return batch
        for lease, number in fetch.told:
            # Left to the deadline: the outcomes of a broken queue cannot be told.
            lease.open -= number
            self._free_if_over(lease)
        return None

    def _mark_broken(self, queue: QueuePace, error: BrokenQueueError) -> None:
        if queue.name not in self._broken_until:
            _log.error("queue_broken", queue=queue.name, error=str(error))
        self._broken_until[queue.name] = time.monotonic() + _BROKEN_PAUSE_S

    def _leave(self, fetch: _Fetch) -> None:
        self._board.free_lease(fetch.slot)
        self._free_slots.append(fetch.slot)

    def _take_batch(self, fetch: _Fetch, batch: Batch) -> None:
        queue = fetch.queue
        self._broken_until.pop(queue.name, None)
        queue.ready_left, queue.suspects, queue.hint_ms = (
            batch.ready_left,
            batch.suspects,
            batch.hint_ms,
        )
        if not batch.items:
            self._leave(fetch)
            # hint 0 without items: expired ones were cleared away and there is more; or suspects wait, which
            # only a child that runs nothing may take.
            if batch.hint_ms != 0 or batch.suspects:
                self._empty_until[queue.name] = time.monotonic() + _LOOK_AGAIN_S
            return
        visibility_s = (batch.deadline_ms - batch.now_ms) / 1000
        # A resumed lease has less left than it was given, hence the larger of what was seen.
        queue.visibility_s = max(queue.visibility_s, visibility_s)
        self._board.hold_lease(fetch.slot, len(batch.items), fetch.begun + visibility_s)
        lease = Lease(self._board, fetch.slot, queue, batch, visibility_s)
        self._leases[fetch.slot] = lease
        self._alone = batch.alone
        self._board.set_visibility(fetch.slot, queue.visibility_s)
        for place, (index, item) in enumerate(zip(batch.indices, batch.items, strict=True)):
            self._local.append(Delivery(lease, place, index, item))

    # -- waiting on empty queues ---------------------------------------------------------------

    def _begin_wait(self) -> None:
        """Wait at the doorbells; for one queue the receive goes along in the same trip."""
        names = [queue for queue in self._queues if queue.hint_ms != PAUSED] or self._queues
        # The receive may run at any moment of the wait, and its lease counts from the earliest: a wait is short
        # beside the visibility timeout.
        block_s = min(_BLOCK_S, max(0.05, self._queues[0].visibility_s / 10))
        command: Command[Any] = Command(
            None,
            (),
            ("BLPOP", *(queue.keys.wake for queue in names), f"{block_s:g}"),
            lambda reply: reply,
        )
        queue = self._queues[0]
        along = len(self._queues) == 1 and self._in_hand() == 0 and queue.hint_ms != PAUSED
        self._waiting = self._enter(queue, []) if along else _Fetch(queue, -1, "", 0.0, 0.0, [])
        self._wait_until = time.monotonic() + block_s
        self._wait_link.begin(command)
        if along:
            queue.receives += 1
            queue.ready_left = None
            self._wait_link.begin(
                settle_receive(
                    queue.keys,
                    self._waiting.lease_id,
                    queue.want(0, self._slots, 1),
                    visibility_ms=self._options.visibility_ms,
                    suspects=Suspects.FIRST
                    if self._options.takes_suspects
                    else Suspects.IF_NOTHING_ELSE,
                )
            )

    def _take_wait(self) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        rung = self._wait_link.finish()
        if waiting.slot >= 0:
            batch = self._finish(self._wait_link, waiting)
            if batch is None:
                self._leave(waiting)
            else:
                self._take_batch(waiting, batch)
            return
        if rung is None:
            # Nobody rang: plain pushes ring nothing, so look everywhere.
            self._empty_until.clear()
            return
        # Who takes a queue's token receives from it first, or others would sleep on.
        queue = next(each for each in self._queues if each.keys.wake.encode() == rung[0])
        self._empty_until.pop(queue.name, None)
        queue.ready_left = None
        if self._fetch is None and not self.stopping:
            in_hand = self._in_hand()
            count = queue.want(in_hand, self._slots, self._board.peers)
            self._begin_fetch(queue, max(1, count), in_hand)

    # -- running -------------------------------------------------------------------------------

    def _start_local(self) -> None:
        if not self._local and not self._groups:
            return
        if self._plain:
            # One executor and nothing to be sorted: the batch goes over as it is.
            ready, self._local = self._local, deque()
            self._running += len(ready)
            self._executors[0].submit(ready)
            return
        work: dict[int, list[Any]] = {}
        batching = self._groups.needed
        if self._at_most_once:
            self._ack_first()
        while self._local:
            delivery = self._local.popleft()
            if not delivery.kind and batching and self._groups.take(delivery):
                continue
            if delivery.kind:
                self._account(delivery)
                continue
            self._add_work(work, delivery, delivery)
        for group in self._groups.ready(flush=self.stopping):
            self._add_work(work, group[0], group)
        for number, items in work.items():
            executor = self._executors[number]
            self._running += sum(len(each) if isinstance(each, list) else 1 for each in items)
            executor.submit(items)

    def _ack_first(self) -> None:
        """At most once: ack before the start, and start only what a definite, counted reply says was ours."""
        if self._fetch is not None:
            self._take_fetch()
        by_lease: dict[int, list[Delivery]] = {}
        kept: deque[Delivery] = deque()
        for delivery in self._local:
            task = self._groups.read(delivery)
            if task is not None and task.task_options.at_most_once:
                by_lease.setdefault(delivery.lease.slot, []).append(delivery)
            kept.append(delivery)
        for deliveries in by_lease.values():
            lease = deliveries[0].lease
            outcomes = Outcomes(lease.id)
            for delivery in deliveries:
                delivery.kind = "a"
                tell(delivery, outcomes)
            self._link.begin(settle_outcomes(lease.queue.keys, [outcomes]))
            settled: Settled = self._link.finish()
            lease.partly = True
            # The script answers unique ones before the others.
            deliveries.sort(key=lambda each: not each.has_unique())
            for delivery, counted in zip(deliveries, settled.counted, strict=True):
                delivery.kind = "" if counted else "l"
                delivery.acked = True
        self._local = kept

    def _add_work(self, work: dict[int, list[Any]], delivery: Delivery, item: Any) -> None:
        executor = self._choose(delivery)
        work.setdefault(self._executors.index(executor), []).append(item)

    def between(self, now: float) -> None:
        """What the inline executor calls after each handler: flush in time, and look whether to stop."""
        if self._untold_since is None:
            self._untold_since = now
        elif now - self._untold_since > _FLUSH_S:
            self._collect()
            self._flush(idle=True, force=True)
            self._look_at_board()

    def _collect(self) -> None:
        """Take what has ended from the executors."""
        for executor in self._executors:
            done = executor.done
            take, account = done.popleft, self._account
            number = 0
            while done:
                account(take())
                number += 1
            self._running -= number

    def _account(self, delivery: Delivery) -> None:
        lease = delivery.lease
        tell(delivery, lease.outcomes)
        if delivery.kind != DROPPED:
            self._handled += 1
        self._measures.note(delivery)
        if not lease.open:
            self._free_if_over(lease)
        elif self._untold_since is None:
            self._untold_since = boot_time()

    # -- telling -------------------------------------------------------------------------------

    def _take_outcomes(
        self, queue: QueuePace | None
    ) -> tuple[list[tuple[Lease, int]], list[Outcomes]]:
        """Take the outcomes of one queue's leases, up to what one call may carry."""
        told: list[tuple[Lease, int]] = []
        outcomes: list[Outcomes] = []
        for lease in self._leases.values():
            if lease.queue is queue and lease.outcomes and len(told) < 64:
                self._measures.learn(lease)
                taken, number = lease.take_outcomes()
                told.append((lease, number))
                outcomes.append(taken)
        if told:
            self._untold_since = None
        return told, outcomes

    def _flush(self, *, idle: bool, force: bool = False) -> None:
        """Tell outcomes now if they have waited for 20 ms, or if there is nothing better to do."""
        self._measures.write()
        if self._untold_since is None:
            return
        if not idle and boot_time() - self._untold_since < _FLUSH_S:
            return
        if self._fetch is not None:
            if not force:
                return  # its reply is near, and the next receive takes the outcomes along
            self._take_fetch()
        for queue in self._by_name.values():
            while True:
                told, outcomes = self._take_outcomes(queue)
                if not told:
                    break
                try:
                    # A receive of nothing: it settles without an answer per message.
                    nothing = self._ids.lease_id()
                    self._link.begin(settle_receive(queue.keys, nothing, 0, outcomes=outcomes))
                    batch: Batch = self._link.finish()
                    self._settled(told, batch.settled)
                except RefusedError as error:
                    _log.error("settle_refused", queue=queue.name, error=str(error))
                    self._settled(told, [number for _, number in told])
        self._untold_since = None

    def _settled(self, told: Sequence[tuple[Lease, int]], held: Sequence[int]) -> None:
        for (lease, number), settled in zip(told, held, strict=True):
            lease.open -= number
            if settled < number:
                self._board.stale += number - settled
            self._free_if_over(lease)

    def _free_if_over(self, lease: Lease) -> None:
        if lease.open <= 0 and self._leases.pop(lease.slot, None) is not None:
            self._board.free_lease(lease.slot)
            self._free_slots.append(lease.slot)
            if lease.alone:
                self._alone = False

    # -- looking -------------------------------------------------------------------------------

    def _look_at_board(self) -> None:
        if self._board.stop:
            self.stop("stopped")
        if self._running:
            for slot in self._leases:
                if self._board.lost(slot):
                    for executor in self._executors:
                        executor.lost(slot)

    def _give_back_unstarted(self) -> None:
        """Give back what has not started; the supervisor may have done so before."""
        self._local.extend(self._groups.clear())
        while self._local:
            delivery = self._local.popleft()
            gone = self._board.bytes[delivery.mark_at] == Mark.GONE
            delivery.kind = "l" if gone else DROPPED
            self._board.bytes[delivery.mark_at] = Mark.GONE
            self._account(delivery)

    def _wait_event(self) -> None:
        """Sleep until a reply, an ended handler or a deadline."""
        if not (self._fetch or self._waiting or self._running or self._groups):
            return
        poll = select.poll()
        poll.register(self._notifier.fileno(), select.POLLIN)
        timeout_s = self._sleep_s()
        for link in (self._link, self._wait_link):
            if len(link):
                if link.fileno() < 0:
                    timeout_s = 0.0  # no connection: finish() makes it anew
                else:
                    poll.register(link.fileno(), select.POLLIN)
        self._notifier.sleeping = True
        if self.stopping != self._known_stopping or any(each.done for each in self._executors):
            timeout_s = 0.0
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
        self._known_stopping = self.stopping
        self._notifier.clear()
        fetched, waited = self._link.fileno(), self._wait_link.fileno()
        if self._fetch is not None and (fetched < 0 or fetched in ready):
            self._take_fetch()
        if self._waiting is not None and not self.stopping:
            overslept = time.monotonic() > self._wait_until + _BLOCK_S
            if waited < 0 or waited in ready or overslept:
                self._take_wait()

    def _sleep_s(self) -> float:
        sleep_s = _LOOK_S
        if self._untold_since is not None and self._fetch is None:
            sleep_s = max(0.0, self._untold_since + _FLUSH_S - boot_time())
        due_s = self._groups.due_in()
        return sleep_s if due_s is None else min(due_s, sleep_s)
