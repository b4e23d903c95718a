"""How many messages to receive at a time: as many as last 50 ms at the measured pace.

Large batches make cheap messages cheap; small ones leave slow messages to others, and little behind a slow handler.
Groups take turns when their messages are received, so what a child has received stands before all turns: of a queue
with groups it is what lasts half as long as a handler, or 5 ms, or three trips.

Of a queue whose pace is unknown a child takes one message for each free handler. If none is free it takes one, as long
as what it holds takes less than a batch's time at the pace of all its queues: the first messages of many queues share a
trip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from qworker.consumer.child.leases.server_clock import ServerClock

if TYPE_CHECKING:
    from qworker.wire.keys import QueueKeys

__all__ = ["MAX_BATCH", "Pace", "QueueState"]

MAX_BATCH: Final = 1000
_BATCH_S: Final = 0.05
#: The same for queues with groups, at least; and the part of it that must have run when the next receive begins.
_TURN_S: Final = 0.005
_TURN_TRIPS: Final = 3
_TURN_PART: Final = 1 / 4
#: A child with one slot that wants no more than this receives messages one by one, if a trip takes less than a
#: twentieth of a message: acked with the next receive, each costs the server less than its share of a small batch.
_FEW: Final = 3
_TRIPS: Final = 20
#: The trips among which the shortest counts.
_RECENT: Final = 50
#: Weight of earlier batches in the mean; the newest batch has the rest.
_MEMORY: Final = 0.7


class Pace:
    """How long a message takes: a mean that follows the newest ones; None before the first."""

    def __init__(self) -> None:
        self.mean_s: float | None = None

    def learn(self, seconds: float, messages: int) -> None:
        """Add the running time of some messages, at least one, to the mean."""
        newest_s = seconds / messages
        known_s = self.mean_s
        if known_s is None or newest_s > 4 * known_s:
            # Much slower than expected: believed at once, because taking too many costs most.
            self.mean_s = newest_s
        else:
            self.mean_s = _MEMORY * known_s + (1 - _MEMORY) * newest_s


class QueueState:
    """A shard that a child receives from, and what the child has learned about it.

    `name` is that of the queue, `shard` that of the shard (`emails/3`), `index` its number on the board. `group`:
    messages that one call of its largest batch handler takes, 0 without batch handlers. `common`: the pace of all
    queues of the child.
    """

    def __init__(
        self,
        keys: QueueKeys,
        index: int,
        *,
        visibility_s: float,
        weight: float = 1.0,
        max_batch: int = MAX_BATCH,
        group: int = 0,
        common: Pace | None = None,
    ) -> None:
        self.keys = keys
        self.name = keys.name
        self.shard = keys.queue
        self.index = index
        self.weight = weight
        self.visibility_s = visibility_s
        self.max_batch = max_batch
        self.group = group
        self.pace, self._common = Pace(), common or Pace()
        #: In a child with both sync and async handlers: the numbers of the executors that its messages may go to, how
        #: many of them may run there at a time, and how many do now. Slots 0: every executor of the child.
        self.executors: tuple[int, ...] = ()
        self.slots = 0
        self.busy = 0
        #: As of the last reply: it has groups.
        self.has_groups = False
        #: As of the last reply: ready messages left, suspects waiting, and what to wait for.
        self.ready_left: int | None = None
        self.suspects = 0
        self.hint_ms = 0
        #: Priorities in use but 0, as of the last poll.
        self.levels: tuple[int, ...] = ()
        self.receives = 0
        #: The clock of the server that holds the queue.
        self.server_clock = ServerClock()
        #: The shortest trip to that server lately, in seconds; None before the first.
        self.trip_s: float | None = None
        self._shortest_s, self._trips = math.inf, 0

    def learn(self, seconds: float, messages: int) -> None:
        """Add the running time of some messages to the pace of the queue, and to that of all."""
        if messages:
            self.pace.learn(seconds, messages)
            self._common.learn(seconds, messages)

    def batch(self, slots: int) -> int:
        """Messages that `slots` handlers finish in a batch's time; 0 if one takes longer or the pace is unknown."""
        return self._batch_at(self.pace, slots)

    def _batch_at(self, pace: Pace, slots: int) -> int:
        mean_s = pace.mean_s
        if mean_s is None:
            return 0
        wanted_s = min(_BATCH_S, self.visibility_s / 4)
        if self.has_groups:
            trips_s = _TURN_TRIPS * (self.trip_s or 0.0)
            wanted_s = min(wanted_s, max(_TURN_S, trips_s, mean_s / 2))
        batch = min(self.max_batch, int(slots * wanted_s / max(mean_s, 1e-7)))
        if slots == 1 and 1 < batch <= _FEW and self.trip_s is not None:
            return 1 if self.trip_s * _TRIPS < mean_s else batch
        return batch

    def note_trip(self, seconds: float, *, waited: bool = False) -> None:
        """Note how long a reply took, at most: it may have waited to be read, or (`waited`) for a message.

        A longer trip counts if none of the last ones was shorter: another server, farther away, may hold the queue now.
        """
        if self.trip_s is None or seconds < self.trip_s:
            self.trip_s = seconds
        if waited:
            return
        self._shortest_s = min(self._shortest_s, seconds)
        self._trips += 1
        if self._trips == _RECENT:
            self.trip_s = self._shortest_s
            self._shortest_s, self._trips = math.inf, 0

    def want(self, busy: int, slots: int, peers: int, collected: int = 0) -> int:
        """Messages to ask for now; 0 for none.

        `busy`: handlers that run or have work waiting; `collected`: messages that wait for a batch handler. One batch
        may wait while another runs; in a queue with groups, one beside what runs. Slow messages are asked for only when
        a handler is free. Every consumer takes its share of a short queue.
        """
        if self.slots:
            slots, busy = self.slots, self.busy
        batch = self.batch(slots)
        beside = batch if self.pace.mean_s is not None else self._batch_at(self._common, slots)
        free = slots - busy
        if self.group:
            # While all handlers are busy the next batch is collected only if they end soon.
            if free <= 0 and (batch < self.group or collected >= self.group):
                return 0
            return min(max(self.group * max(free, 1) - collected, 1), self.max_batch)
        if self.has_groups:
            # The one batch that waits is filled up as it runs.
            waiting = batch if batch > 1 else 0
            wanted = free + waiting
            if wanted < max(1, waiting * _TURN_PART):
                return 0
        elif free <= 0 and (beside < 2 or busy > beside):
            return 0
        else:
            wanted = max(free, batch, 1)
        if self.ready_left is not None and self.ready_left > 0:
            wanted = min(wanted, max(1, math.ceil(self.ready_left / peers)))
        return min(wanted, self.max_batch)
