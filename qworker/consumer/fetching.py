"""Asks the server for messages: for the next batch while this one runs, and where queues are empty at their doorbells.

One connection fetches, polls and settles. Another one waits (see `doorbells`), so that a wait never delays a settle.
What is asked at a time goes in one trip: receives from several queues of which each has little, and a poll of all the
others (see `polls`). So neither the number of queues nor the round trip keeps a child from its last queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command
from qworker.client.commands.polling import poll
from qworker.client.commands.receiving import PAUSED, settle_receive
from qworker.client.commands.settling import Outcomes, settle
from qworker.consumer.chooser import QueueChooser
from qworker.consumer.doorbells import Wait
from qworker.consumer.polls import PollSchedule, calls_of
from qworker.consumer.suspect_turns import SuspectTurns
from qworker.errors import (
    InDoubtError,
    QworkerError,
    RetryRule,
    ServerError,
    UnfinishedError,
)
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.client.commands.receiving import Batch
    from qworker.consumer.delivery import Delivery
    from qworker.consumer.doorbells import Doorbell
    from qworker.consumer.hand import Entry, Hand
    from qworker.consumer.link import Link
    from qworker.consumer.pace import QueuePace
    from qworker.consumer.telling import Teller, Told
    from qworker.wire.ids import IdSource

__all__ = ["FetchOptions", "Fetcher"]

_log = guarded(__name__)

_BLOCK_S: Final = 2.0
#: A wait or a sleep that would be over at once is not worth its trip.
_LEAST_BLOCK_S: Final = 0.01
_BROKEN_PAUSE_S: Final = 5.0
#: The same where the node of a Cluster is away: it costs nothing to ask again (see `Link`), and a replica may serve.
_AWAY_PAUSE_S: Final = 1.0
#: A call that is not answered for so long is not waited for any more: its server has stopped.
_REPLY_S: Final = 2 * _BLOCK_S
#: The same in a Cluster, where calls to other nodes wait behind it.
_NODE_REPLY_S: Final = 1.0
#: After an error at the doorbells, waiting is left alone for so long.
_DEAF_S: Final = 1.0
#: A busy child that has heard the bell for a suspect lets others hear it for so long.
_PASSED_ON_S: Final = 0.05
#: Receives of one trip at most, each from another queue.
_RECEIVES: Final = 16


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """`takes_suspects`: this child may take suspects before others. `weighted`: queues are tried in random order by
    weight, else strictly in order. `visibility_ms` None: the queue's.
    """

    takes_suspects: bool = True
    weighted: bool = False
    visibility_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A receive on its way, and what was told along with it."""

    entry: Entry
    told: Sequence[Told]
    until: float
    #: It was begun because this one had rung, and it does not take suspects.
    owes_token: Doorbell | None = None


@dataclass(frozen=True, slots=True)
class _Poll:
    """A poll of some queues on its way."""

    queues: Sequence[QueuePace]
    until: float


class Fetcher:
    """Receives into `arrived`. `slots` handlers may run at a time.

    `calls` counts those that run, by executor; whoever runs them sets it.
    """

    def __init__(
        self,
        queues: Sequence[QueuePace],
        hand: Hand,
        teller: Teller,
        link: Link,
        bells: Sequence[Doorbell],
        *,
        ids: IdSource,
        slots: int,
        options: FetchOptions,
        clustered: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arrived: deque[Delivery] = deque()
        self.calls: Sequence[int] = ()
        self._single = len(queues) == 1
        self._chooser = QueueChooser(queues, weighted=options.weighted)
        self._polls = PollSchedule(len(queues))
        self._suspects = SuspectTurns(first=options.takes_suspects, clock=clock)
        self._by_wake = {queue.keys.wake.encode(): queue for queue in queues}
        self._hand = hand
        self._teller = teller
        self._link = link
        self._bells = list(bells)
        self._ids = ids
        self._slots = slots
        self._options = options
        self._clustered = clustered
        self._reply_s = _NODE_REPLY_S if clustered else _REPLY_S
        self._clock = clock
        #: What is on its way over the first connection, in the order in which it will be answered.
        self._in_flight: deque[_Fetch | _Poll] = deque()
        self._receives = 0
        #: Leases that may have come to be by receives that were given up, by queue.
        self._doubtful: dict[str, list[str]] = {}
        #: Polls that failed, in two halves each; and leases that are to be given back.
        self._again: deque[Sequence[QueuePace]] = deque()
        self._releases: deque[tuple[QueuePace, str]] = deque()
        self.look_again()

    @property
    def fetching(self) -> bool:
        """Whether a receive or a poll is on its way over the first connection."""
        return bool(self._in_flight)

    @property
    def waiting(self) -> bool:
        """Whether it waits at the doorbells of all queues."""
        return bool(self._bells) and all(bell.wait is not None for bell in self._bells)

    # -- asking --------------------------------------------------------------------------------

    def more(self, busy: int, collected: int = 0, most: int | None = None) -> bool:
        """Ask for more where there is room. Returns False where no queue is known to have something.

        `busy`: handlers that run or have work waiting. `collected`: messages that wait for their batch to fill up.
        `most`: messages that may still be taken, None for any number.
        """
        if self._receives or self._hand.alone or self._hand.full:
            return True
        idle = not busy and not collected
        if self.waiting:
            if idle and not any(bell.wait and bell.wait.entry for bell in self._bells):
                self._fetch_suspect(most)
            return True
        known = self._begin_receives(busy, collected, most)
        if self._receives or not known or len(self.calls) > 1:
            self._poll_if_due(filled=known)
        return known or self.fetching

    def _begin_receives(self, busy: int, collected: int, most: int | None) -> bool:
        """Receive from queues that have something, as long as there is room; returns whether there are any."""
        idle = not busy and not collected
        # Of these a token is waited for, whose receive comes first.
        waited = {queue.place for bell in self._bells if bell.wait for queue in bell.queues}
        candidates = self._chooser.candidates(self._clock(), idle=idle, without=waited)
        full: set[int] = set()
        asked: dict[int, int] = {}
        taken = 0
        for queue in candidates:
            if not full.isdisjoint(queue.executors):
                continue
            count = self._room(queue, busy + taken, collected, asked)
            if most is not None:
                count = min(count, most - taken)
            if count <= 0:
                if not queue.executors:
                    break
                # Its turn is not for a later one that waits for the same handlers; others may go on.
                full.update(queue.executors)
                continue
            if self._suspects.stands_still(queue, idle=idle):
                break
            left = queue.ready_left
            if left is None or (idle and queue.suspects) or self._single:
                # What it gives is not known, or may be a suspect, beside which nothing runs.
                if not self._receives:
                    self._begin_fetch(queue, count, idle=idle)
                break
            self._begin_fetch(queue, count, idle=False)
            if count < left or self._receives >= _RECEIVES or self._hand.full:
                break
            taken += left
            for number in queue.executors:
                asked[number] = asked.get(number, 0) + left
        return bool(candidates)

    def _room(
        self, queue: QueuePace, busy: int, collected: int = 0, asked: dict[int, int] | None = None
    ) -> int:
        """How many messages to ask a queue for now. `asked`: on their way already, by executor."""
        asked = asked or {}
        queue.busy = sum(self.calls[number] + asked.get(number, 0) for number in queue.executors)
        return queue.want(busy, self._slots, self._hand.board.peers, collected)

    def _fetch_suspect(self, most: int | None) -> None:
        """Take a suspect that is known of: who has become idle during its wait need not wait to its end for that."""
        for queue in self._chooser.candidates(self._clock(), idle=True):
            if queue.suspects:
                count = max(1, self._room(queue, 0))
                self._begin_fetch(queue, count if most is None else min(count, most), idle=True)
                return

    def look_again(self) -> None:
        """Forget which queues were empty."""
        if self._single:
            self._chooser.fill(self._chooser.queues[0])
        else:
            self._polls.want()

    def _begin_fetch(
        self, queue: QueuePace, count: int, *, idle: bool, rung: Doorbell | None = None
    ) -> None:
        told = self._teller.take(queue)
        entry = self._hand.enter(queue, self._ids.lease_id(self._options.visibility_ms))
        suspects = self._suspects.of(queue, idle=idle)
        owes = rung if not suspects else None
        self._in_flight.append(_Fetch(entry, told, self._clock() + self._reply_s, owes))
        self._receives += 1
        queue.receives += 1
        self._chooser.pass_turn(queue)
        self._link.begin(
            settle_receive(
                queue.keys,
                entry.lease_id,
                count,
                outcomes=[each.outcomes for each in told],
                visibility_ms=self._options.visibility_ms,
                suspects=suspects,
                who=self._teller.who,
            )
        )

    # -- polling -------------------------------------------------------------------------------

    def poll_in(self) -> float | None:
        """Seconds after which `more` is to be called for a poll; None where replies and bells tell when."""
        if self.fetching or self.waiting:
            return None
        return max(_LEAST_BLOCK_S, self._poll_due_in(filled=self._chooser.any_filled))

    def _poll_due_in(self, *, filled: bool) -> float:
        now = self._clock()
        waits = bool(self._bells) and all(bell.deaf_until <= now for bell in self._bells)
        return self._polls.due_in(now, filled=filled, waits=waits, peers=self._hand.board.peers)

    def _poll_if_due(self, *, filled: bool) -> None:
        if self._poll_due_in(filled=filled) > 0 or any(
            isinstance(each, _Poll) for each in self._in_flight
        ):
            return
        now = self._clock()
        self._polls.begin(now)
        for queues in calls_of(self._chooser.usable(now), clustered=self._clustered):
            self._begin_poll(queues)

    def _begin_poll(self, queues: Sequence[QueuePace]) -> None:
        self._in_flight.append(_Poll(queues, self._clock() + self._reply_s))
        self._link.begin(poll([queue.keys for queue in queues]))

    def _take_poll(self, asked: _Poll) -> None:
        queues = asked.queues
        try:
            found = self._link.finish()
        except QworkerError as error:
            if len(queues) > 1:
                # One of them may be to blame (a right that is missing): the others take no harm.
                half = len(queues) // 2
                self._again += (queues[:half], queues[half:])
            else:
                self._break(queues[0], str(error), type(error).__name__, _pause_s(error))
            return
        for place, queue in enumerate(queues):
            available = found.get(place)
            if available is None:
                self._chooser.drain(queue)
                self._chooser.suspect(queue, 0)
                queue.ready_left = 0
            elif available.problem:
                self._break(queue, available.problem, "BrokenQueueError")
            else:
                queue.ready_left = available.ready
                # What it said of a pause is over.
                queue.hint_ms = 0
                self._chooser.suspect(queue, available.suspects)
                if available.ready:
                    self._chooser.fill(queue)
                else:
                    self._chooser.drain(queue)
        self._polls.end(found=bool(found))

    # -- waiting -------------------------------------------------------------------------------

    def begin_wait(self, *, idle: bool, most: int | None = None) -> None:
        """Wait at the doorbells; for one queue the receive goes along in the same trip. Nothing may be on its way."""
        for bell in self._bells:
            if bell.wait is None and not self._hand.full:
                self._begin_wait(bell, idle=idle, most=most)

    def _begin_wait(self, bell: Doorbell, *, idle: bool, most: int | None) -> None:
        now = self._clock()
        if now < bell.deaf_until:
            return
        queues = self._chooser.usable(now, bell.queues)
        if not queues:
            return
        queue = queues[0]
        along = self._single and idle and queue.hint_ms != PAUSED
        block_s = min(_BLOCK_S, max(_LEAST_BLOCK_S, self._poll_due_in(filled=False)))
        if along:
            # The receive may run at any moment of the wait, and its lease counts from the earliest: a wait is short
            # beside the visibility timeout.
            block_s = min(block_s, max(0.05, queue.visibility_s / 10))
        words = ("BLPOP", *(each.keys.wake for each in queues), f"{block_s:.3f}")
        entry = (
            self._hand.enter(queue, self._ids.lease_id(self._options.visibility_ms))
            if along
            else None
        )
        bell.wait = Wait(entry, now + block_s)
        # Or the whole wait would be for the connection's first reply: deaf to handlers that end meanwhile.
        wait = Command(None, (), words, _as_it_is)
        bell.link.connect(wait)
        bell.link.begin(wait)
        if entry is None:
            return
        queue.receives += 1
        queue.ready_left = None
        wanted = queue.want(0, self._slots, 1)
        bell.link.begin(
            settle_receive(
                queue.keys,
                entry.lease_id,
                wanted if most is None else min(wanted, most),
                visibility_ms=self._options.visibility_ms,
                suspects=self._suspects.of_wait(),
                who=self._teller.who,
            )
        )

    def deaf_s(self) -> float | None:
        """Seconds for which some doorbell is still left alone; None where none is."""
        now = self._clock()
        return min(
            (bell.deaf_until - now for bell in self._bells if bell.deaf_until > now), default=None
        )

    # -- taking what comes ---------------------------------------------------------------------

    def descriptors(self) -> tuple[int, ...]:
        """What to wait on for replies; -1 for a connection that has to be made anew, which `take` does."""
        links = [self._link] * self.fetching
        links += [bell.link for bell in self._bells if bell.wait is not None]
        return tuple(link.fileno() for link in links)

    def take(self, ready: set[int], *, busy: int = 0, collected: int = 0) -> None:
        """Take the replies that are there. Raises `Abandoned`."""
        self._release_all()
        while self._again and not len(self._link):
            self._begin_poll(self._again.popleft())
        if self._in_flight:
            if self._link.fileno() in ready | {-1}:
                self._take_first()
                # More of them may have come in one piece, and are not heard of again.
                while self._in_flight and self._link.has_reply():
                    self._take_first()
            elif self._clock() > self._in_flight[0].until:
                self._link.lapse()
                self._take_first()
        for bell in self._bells:
            if bell.wait is None:
                continue
            if bell.link.fileno() in ready | {-1}:
                self._take_wait(bell, bell.wait, busy, collected)
            elif self._clock() > bell.wait.until + _BLOCK_S:
                # Nothing comes any more from a server that has stopped.
                bell.link.lapse()
                if bell.wait.entry is None:
                    bell.link.forget()
                    bell.wait, bell.deaf_until = None, self._clock() + _DEAF_S
                else:
                    self._take_wait(bell, bell.wait, busy, collected)

    def take_all(self) -> None:
        """Take the replies of all that is on its way, however long it takes. Raises `Abandoned`."""
        while self._in_flight:
            self._take_first()
        self._release_all()

    def _take_first(self) -> None:
        first = self._in_flight.popleft()
        if isinstance(first, _Poll):
            self._take_poll(first)
        else:
            self._receives -= 1
            self._take_fetch(first)

    def _take_fetch(self, fetch: _Fetch) -> None:
        batch = self._finish(self._link, fetch.entry, fetch.told)
        if batch is None:
            return
        self._teller.settled(fetch.told, batch.settled)
        self._take_batch(fetch.entry, batch)
        if fetch.owes_token and not batch.items and batch.suspects:
            # The bell rang for a suspect, which is not for this busy child: somebody idle is to hear it.
            fetch.owes_token.deaf_until = self._clock() + _PASSED_ON_S
            self._ring(fetch.owes_token, fetch.entry.queue)

    def _take_wait(self, bell: Doorbell, wait: Wait, busy: int, collected: int) -> None:
        bell.wait = None
        try:
            rung = bell.link.finish()
        except QworkerError as error:
            _log.error("doorbell_broken", error=str(error))
            bell.deaf_until = self._clock() + _DEAF_S
            rung = None
            # It says which queue is to blame, and the next wait is without it.
            self._polls.want()
        if wait.entry is not None:
            batch = self._finish(bell.link, wait.entry)
            if batch is not None:
                self._take_batch(wait.entry, batch)
            return
        if rung is None:
            # Nobody rang: plain pushes ring nothing. Of several queues the next poll tells.
            if self._single:
                self._chooser.fill(bell.queues[0])
            return
        # Who takes a queue's token receives from it first, or others would sleep on.
        queue = self._by_wake[rung[0]]
        self._chooser.fill(queue)
        self._polls.change()
        queue.ready_left = None
        if self._hand.full or self._hand.alone or self._receives:
            self._ring(bell, queue)
            return
        count = self._room(queue, busy, collected)
        self._begin_fetch(queue, max(1, count), idle=not busy and not collected, rung=bell)
        self._poll_if_due(filled=True)

    def _ring(self, bell: Doorbell, queue: QueuePace) -> None:
        """Give a token back, for another consumer, or for this one when it can receive."""
        try:
            bell.link.call(Command(None, (), ("RPUSH", queue.keys.wake, 1), _as_it_is))
        except QworkerError as error:
            _log.error("doorbell_broken", error=str(error))

    def _finish(self, link: Link, entry: Entry, told: Sequence[Told] = ()) -> Batch | None:
        """Read the reply of a receive; None where it was refused, and the queue is left alone for a while."""
        try:
            batch: Batch = link.finish()
        except QworkerError as error:
            queue = entry.queue
            self._break(queue, str(error), type(error).__name__, _pause_s(error))
            self._hand.leave(entry)
            self._teller.refused(queue, told, error)
            if isinstance(error, InDoubtError | UnfinishedError):
                self._doubtful.setdefault(queue.place, []).append(entry.lease_id)
            return None
        return batch

    def _break(
        self, queue: QueuePace, problem: str, kind: str, pause_s: float = _BROKEN_PAUSE_S
    ) -> None:
        """Leave a queue alone for a while that cannot be received from; the others take no harm."""
        if self._chooser.leave_alone(queue, self._clock() + pause_s):
            _log.error("queue_broken", queue=queue.place, error=problem, kind=kind)
        if self._single:
            return
        # The poll after the pause tells whether it has something.
        self._chooser.drain(queue)
        self._chooser.suspect(queue, 0)

    def _take_batch(self, entry: Entry, batch: Batch) -> None:
        queue, chooser = entry.queue, self._chooser
        chooser.mend(queue)
        for lease_id in self._doubtful.pop(queue.place, ()):
            self._release(queue, lease_id)
        queue.ready_left, queue.hint_ms = batch.ready_left, batch.hint_ms
        chooser.suspect(queue, batch.suspects)
        if not batch.items:
            self._hand.leave(entry)
            # hint 0 without items: expired ones were cleared away and there is more; or suspects wait, which
            # only a child that runs nothing may take.
            if batch.hint_ms != 0 or batch.suspects:
                chooser.drain(queue)
            else:
                queue.ready_left = None
                chooser.fill(queue)
            return
        self._polls.change()
        if batch.ready_left or self._single:
            # Others may push without ringing: a single queue is asked until it gives nothing.
            chooser.fill(queue)
        else:
            chooser.drain(queue)
        deliveries = self._hand.hold(entry, batch)
        if self._hand.board.recalled(entry.slot):
            # The supervisor took the lease back while its reply was on the way, perhaps before it was made.
            self._give_back(entry, deliveries)
        else:
            self.arrived += deliveries

    def _give_back(self, entry: Entry, deliveries: Sequence[Delivery]) -> None:
        self._release(entry.queue, entry.lease_id)
        lease = deliveries[0].lease
        lease.open = 0
        self._hand.free_if_over(lease)

    def _release(self, queue: QueuePace, lease_id: str) -> None:
        """Give back what is left in a lease, uncounted; as soon as nothing else is on its way."""
        self._releases.append((queue, lease_id))

    def _release_all(self) -> None:
        while self._releases and not len(self._link):
            queue, lease_id = self._releases.popleft()
            outcomes = Outcomes(lease_id)
            outcomes.release("*")
            try:
                self._link.call(settle(queue.keys, [outcomes], who=self._teller.who))
            except QworkerError as error:
                _log.error("release_refused", queue=queue.place, error=str(error))

    # -- ending --------------------------------------------------------------------------------

    def end(self) -> None:
        """Cut the waits off and take what is on its way. Raises `Abandoned`.

        If the lease of a wait came to be after all, the supervisor finds it on the board.
        """
        for bell in self._bells:
            bell.link.forget()
            bell.wait = None
        self.take_all()

    def let_go(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self._link.let_go()
        for bell in self._bells:
            bell.link.let_go()

    def close(self) -> None:
        """Close the connections."""
        self._link.forget()
        for bell in self._bells:
            bell.link.forget()


def _pause_s(error: QworkerError) -> float:
    """How long a queue is left alone whose call raised this."""
    away = isinstance(error, ServerError) and error.retry is not RetryRule.NEVER
    return _AWAY_PAUSE_S if away else _BROKEN_PAUSE_S


def _as_it_is(reply: Any) -> Any:
    return reply
