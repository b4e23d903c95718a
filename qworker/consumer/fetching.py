"""Asks the server for messages: for the next batch while this one runs, and where queues are empty at their doorbells.

One connection fetches and settles. Another one waits (see `doorbells`), so that a wait never delays a settle.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.receiving import PAUSED, Suspects, settle_receive
from qworker.client.commands.settling import Outcomes, settle
from qworker.consumer.doorbells import Wait
from qworker.errors import InDoubtError, QworkerError, UnfinishedError

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

_log = structlog.get_logger(__name__)

_BLOCK_S: Final = 2.0
#: A queue that was empty is asked again so soon while others are busy.
_LOOK_AGAIN_S: Final = 0.05
_BROKEN_PAUSE_S: Final = 5.0
#: Where there is no waiting, an empty queue is looked at again so soon, less often the longer it stays empty.
_FIRST_LOOK_S: Final = 0.005
_LAST_LOOK_S: Final = 0.25
#: A receive that is not answered for so long is not waited for any more: its server has stopped.
_REPLY_S: Final = 2 * _BLOCK_S
#: After an error at the doorbells, waiting is left alone for so long.
_DEAF_S: Final = 1.0
#: Every so many receives a child that may take suspects takes one first.
_SUSPECT_TURN: Final = 4
#: A child stands still so long at most to become free for suspects, in so long a time.
_DRAIN_S: Final = 5.0
_DRAIN_EVERY_S: Final = 30.0


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


class Fetcher:
    """Receives into `arrived`. `slots` handlers may run at a time."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arrived: deque[Delivery] = deque()
        self._queues = list(queues)
        self._hand = hand
        self._teller = teller
        self._link = link
        self._bells = list(bells)
        self._ids = ids
        self._slots = slots
        self._options = options
        self._clock = clock
        self._fetch: _Fetch | None = None
        self._quiet_until: dict[str, float] = {}
        self._looks_s: dict[str, float] = {}
        self._broken_until: dict[str, float] = {}
        #: Leases that may have come to be by receives that were given up, by queue.
        self._doubtful: dict[str, list[str]] = {}
        #: When seconds of standing still are counted anew, how many there were, and since when there are more.
        self._drain_anew = 0.0
        self._stood_still_s = 0.0
        self._still_since: float | None = None

    @property
    def fetching(self) -> bool:
        """Whether a receive is on its way over the first connection."""
        return self._fetch is not None

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
        if self._fetch is not None or self._hand.alone or self._hand.full:
            return True
        idle = not busy and not collected
        if self.waiting:
            if idle and not any(bell.wait and bell.wait.entry for bell in self._bells):
                self._fetch_suspect(most)
            return True
        known = False
        full: set[int] = set()
        for queue in self._open_queues(idle=idle):
            known = True
            if not full.isdisjoint(queue.executors):
                continue
            count = queue.want(busy, self._slots, self._hand.board.peers, collected)
            if most is not None:
                count = min(count, most)
            if count > 0:
                if not self._drains(queue, idle=idle):
                    self._begin_fetch(queue, count, idle=idle)
                break
            if not queue.executors:
                break
            # Its turn is not for a later one that waits for the same handlers; others may go on.
            full.update(queue.executors)
        return known

    def _fetch_suspect(self, most: int | None) -> None:
        """Take a suspect that is known of: who has become idle during its wait need not wait to its end for that."""
        now = self._clock()
        for queue in self._queues:
            known = queue.suspects and queue.hint_ms != PAUSED
            if known and self._broken_until.get(queue.place, 0.0) <= now:
                count = max(1, queue.want(0, self._slots, self._hand.board.peers))
                self._begin_fetch(queue, count if most is None else min(count, most), idle=True)
                return

    def _open_queues(self, *, idle: bool) -> Iterator[QueuePace]:
        """The queues, strictly or by weight, that are not known to be empty or broken."""
        now = self._clock()
        queues = self._queues
        if self._options.weighted and len(queues) > 1:
            queues = sorted(queues, key=lambda each: -(random.random() ** (1 / each.weight)))  # noqa: S311
        # Of these a token is waited for, whose receive comes first.
        waited = {queue.place for bell in self._bells if bell.wait for queue in bell.queues}
        for queue in queues:
            if queue.place in waited or self._broken_until.get(queue.place, 0.0) > now:
                continue
            suspects = idle and queue.suspects and queue.hint_ms != PAUSED
            if suspects or self._quiet_until.get(queue.place, 0.0) <= now:
                yield queue

    def look_again(self) -> None:
        """Forget which queues were empty."""
        self._quiet_until.clear()

    def _drains(self, queue: QueuePace, *, idle: bool) -> bool:
        """Whether to take nothing now because a suspect waits, and it is time for one: what is in hand ends first.

        Where handlers run for minutes that would be a long standstill, so no more than 5 s of 30 s are spent on it.
        """
        turn = queue.receives % _SUSPECT_TURN == _SUSPECT_TURN - 1
        if not (queue.suspects and self._options.takes_suspects and turn) or idle:
            self._still_since = None
            return False
        now = self._clock()
        if now >= self._drain_anew:
            self._drain_anew, self._stood_still_s = now + _DRAIN_EVERY_S, 0.0
        if self._still_since is not None:
            self._stood_still_s += now - self._still_since
        self._still_since = now if self._stood_still_s < _DRAIN_S else None
        return self._still_since is not None

    def _suspects(self, queue: QueuePace, *, idle: bool) -> Suspects:
        """Suspects are taken only by a child that runs nothing else."""
        if not idle:
            return Suspects.NEVER
        if self._options.takes_suspects and queue.receives % _SUSPECT_TURN == _SUSPECT_TURN - 1:
            return Suspects.FIRST
        return Suspects.IF_NOTHING_ELSE

    def _begin_fetch(
        self, queue: QueuePace, count: int, *, idle: bool, rung: Doorbell | None = None
    ) -> None:
        self._still_since = None
        told = self._teller.take(queue)
        entry = self._hand.enter(queue, self._ids.lease_id(self._options.visibility_ms))
        suspects = self._suspects(queue, idle=idle)
        owes = rung if suspects == Suspects.NEVER else None
        self._fetch = _Fetch(entry, told, self._clock() + _REPLY_S, owes)
        queue.receives += 1
        self._pass_turn(queue)
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

    def _pass_turn(self, queue: QueuePace) -> None:
        """Let the other shards of a queue have their turn before this one."""
        shards = [each for each in self._queues if each.name == queue.name]
        if len(shards) > 1 and queue is not shards[-1]:
            self._queues.remove(queue)
            self._queues.insert(self._queues.index(shards[-1]) + 1, queue)

    def begin_wait(self, *, idle: bool, most: int | None = None) -> None:
        """Wait at the doorbells; for one queue the receive goes along in the same trip. Nothing may be on its way."""
        for bell in self._bells:
            if bell.wait is None and not self._hand.full:
                self._begin_wait(bell, idle=idle, most=most)

    def _begin_wait(self, bell: Doorbell, *, idle: bool, most: int | None) -> None:
        now = self._clock()
        open_queues = [
            queue for queue in bell.queues if self._broken_until.get(queue.place, 0.0) <= now
        ]
        if not open_queues or now < bell.deaf_until:
            return
        # The receive may run at any moment of the wait, and its lease counts from the earliest: a wait is short
        # beside the visibility timeout.
        shortest_s = min(queue.visibility_s for queue in open_queues)
        block_s = min(_BLOCK_S, max(0.05, shortest_s / 10))
        words = ("BLPOP", *(queue.keys.wake for queue in open_queues), f"{block_s:g}")
        queue = open_queues[0]
        along = len(self._queues) == 1 and idle and queue.hint_ms != PAUSED
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
        first = Suspects.FIRST if self._options.takes_suspects else Suspects.IF_NOTHING_ELSE
        bell.link.begin(
            settle_receive(
                queue.keys,
                entry.lease_id,
                wanted if most is None else min(wanted, most),
                visibility_ms=self._options.visibility_ms,
                suspects=first,
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
        if self._fetch is not None:
            if self._link.fileno() in ready | {-1}:
                self.take_fetch()
            elif self._clock() > self._fetch.until:
                self._link.lapse()
                self.take_fetch()
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

    def take_fetch(self) -> None:
        """Take the reply of the receive on its way, however long it takes. Raises `Abandoned`."""
        fetch, self._fetch = self._fetch, None
        if fetch is None:
            return
        batch = self._finish(self._link, fetch.entry, fetch.told)
        if batch is not None:
            self._teller.settled(fetch.told, batch.settled)
            self._take_batch(fetch.entry, batch)
            if fetch.owes_token and not batch.items and batch.suspects:
                # The bell rang for a suspect, which is not for this busy child: somebody idle is to hear it.
                fetch.owes_token.deaf_until = self._clock() + _LOOK_AGAIN_S
                self._ring(self._link, fetch.entry.queue)

    def _take_wait(self, bell: Doorbell, wait: Wait, busy: int, collected: int) -> None:
        bell.wait = None
        try:
            rung = bell.link.finish()
        except QworkerError as error:
            _log.error("doorbell_broken", error=str(error))
            bell.deaf_until = self._clock() + _DEAF_S
            rung = None
        if wait.entry is not None:
            batch = self._finish(bell.link, wait.entry)
            if batch is not None:
                self._take_batch(wait.entry, batch)
            return
        if rung is None:
            # Nobody rang: plain pushes ring nothing, so look everywhere.
            for each in bell.queues:
                self._quiet_until.pop(each.place, None)
            return
        # Who takes a queue's token receives from it first, or others would sleep on.
        queue = next(each for each in self._queues if each.keys.wake.encode() == rung[0])
        self._quiet_until.pop(queue.place, None)
        queue.ready_left = None
        if self._hand.full or self._hand.alone or self._fetch is not None:
            self._ring(bell.link, queue)
            return
        count = queue.want(busy, self._slots, self._hand.board.peers, collected)
        self._begin_fetch(queue, max(1, count), idle=not busy and not collected, rung=bell)

    def _ring(self, link: Link, queue: QueuePace) -> None:
        """Give a token back, for another consumer, or for this one when it can receive."""
        try:
            link.call(Command(None, (), ("RPUSH", queue.keys.wake, 1), _as_it_is))
        except QworkerError as error:
            _log.error("doorbell_broken", error=str(error))

    def _finish(self, link: Link, entry: Entry, told: Sequence[Told] = ()) -> Batch | None:
        """Read the reply of a receive; None where it was refused, and the queue is left alone for a while."""
        try:
            batch: Batch = link.finish()
        except QworkerError as error:
            queue = entry.queue
            if queue.place not in self._broken_until:
                _log.error(
                    "queue_broken", queue=queue.place, error=str(error), kind=type(error).__name__
                )
            self._broken_until[queue.place] = self._clock() + _BROKEN_PAUSE_S
            self._hand.leave(entry)
            self._teller.refused(queue, told, error)
            if isinstance(error, InDoubtError | UnfinishedError):
                self._doubtful.setdefault(queue.place, []).append(entry.lease_id)
            return None
        return batch

    def _take_batch(self, entry: Entry, batch: Batch) -> None:
        queue = entry.queue
        self._broken_until.pop(queue.place, None)
        for lease_id in self._doubtful.pop(queue.place, ()):
            self._release(queue, lease_id)
        queue.ready_left, queue.suspects = batch.ready_left, batch.suspects
        queue.hint_ms = batch.hint_ms
        if not batch.items:
            self._hand.leave(entry)
            # hint 0 without items: expired ones were cleared away and there is more; or suspects wait, which
            # only a child that runs nothing may take.
            if batch.hint_ms != 0 or batch.suspects:
                self._quiet_until[queue.place] = self._clock() + self._look_again_s(queue)
            return
        self._looks_s.pop(queue.place, None)
        deliveries = self._hand.hold(entry, batch)
        if self._hand.board.recalled(entry.slot):
            # The supervisor took the lease back while its reply was on the way, perhaps before it was made.
            self._give_back(entry, deliveries)
        else:
            self.arrived += deliveries

    def _look_again_s(self, queue: QueuePace) -> float:
        """In how many seconds to look again at a queue that was empty."""
        if self._bells:
            return _LOOK_AGAIN_S
        pause_s = self._looks_s.get(queue.place, _FIRST_LOOK_S)
        self._looks_s[queue.place] = min(2 * pause_s, _LAST_LOOK_S)
        return pause_s

    def _give_back(self, entry: Entry, deliveries: Sequence[Delivery]) -> None:
        self._release(entry.queue, entry.lease_id)
        lease = deliveries[0].lease
        lease.open = 0
        self._hand.free_if_over(lease)

    def _release(self, queue: QueuePace, lease_id: str) -> None:
        """Give back what is left in a lease, uncounted."""
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
        self.take_fetch()

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


def _as_it_is(reply: Any) -> Any:
    return reply
