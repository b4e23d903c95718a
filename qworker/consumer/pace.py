"""How many messages to take at a time: as many as last 50 ms at the measured pace.

Large batches make cheap messages cheap; small ones leave slow messages to others, and little behind a slow handler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from qworker.consumer.server_clock import ServerClock

if TYPE_CHECKING:
    from qworker.wire.keys import QueueKeys

__all__ = ["MAX_BATCH", "QueuePace"]

MAX_BATCH: Final = 1000
_BATCH_S: Final = 0.05
#: Weight of what was known in the mean; the newest batch has the rest.
_MEMORY: Final = 0.7


class QueuePace:
    """One queue, or one shard of it, that a child receives from, and what it has learned of it.

    `name` is the queue's, `place` that of the shard. `group`: messages that one call of its largest batch handler
    takes, 0 where it has none.
    """

    def __init__(
        self,
        keys: QueueKeys,
        index: int,
        *,
        weight: float = 1.0,
        visibility_s: float = 30.0,
        max_batch: int = MAX_BATCH,
        group: int = 0,
    ) -> None:
        self.keys = keys
        self.name = keys.name
        self.place = keys.queue
        self.index = index
        self.weight = weight
        self.visibility_s = visibility_s
        self.max_batch = max_batch
        self.group = group
        self.mean_s: float | None = None
        #: In a child with both sync and async handlers: the places of the executors that its messages may go to, how
        #: many of them run at a time there, and how many do now. Slots 0: every executor of the child.
        self.executors: tuple[int, ...] = ()
        self.slots = 0
        self.busy = 0
        #: What the last reply said: ready messages left, suspects waiting, and what to wait for.
        self.ready_left: int | None = None
        self.suspects = 0
        self.hint_ms = 0
        self.receives = 0
        #: The clock of the server that holds the queue.
        self.server_clock = ServerClock()

    def learn(self, seconds: float, messages: int) -> None:
        """Take the running time of some messages into the mean."""
        if messages:
            newest_s = seconds / messages
            known_s = self.mean_s
            if known_s is None or newest_s > 4 * known_s:
                # Slower than thought: believed at once, for taking too many costs most.
                self.mean_s = newest_s
            else:
                self.mean_s = _MEMORY * known_s + (1 - _MEMORY) * newest_s

    def batch(self, slots: int) -> int:
        """Messages that `slots` handlers finish in 50 ms; 0 where one takes longer or the pace is unknown."""
        if self.mean_s is None:
            return 0
        wanted_s = min(_BATCH_S, self.visibility_s / 4)
        return min(self.max_batch, int(slots * wanted_s / max(self.mean_s, 1e-7)))

    def want(self, busy: int, slots: int, peers: int, collected: int = 0) -> int:
        """Messages to ask for now; 0 for none.

        `busy`: handlers that run or have work waiting; `collected`: messages that wait for a batch handler. One batch
        may wait while another runs; slow messages are asked for only when a handler is free. Of a short queue every
        consumer takes its share.
        """
        if self.slots:
            slots, busy = self.slots, self.busy
        batch = self.batch(slots)
        free = slots - busy
        if self.group:
            # Calls are filled up. While all handlers are busy the next call is collected only if they end soon.
            if free <= 0 and (batch < self.group or collected >= self.group):
                return 0
            return min(max(self.group * max(free, 1) - collected, 1), self.max_batch)
        if free <= 0 and (batch < 2 or busy > batch):
            return 0
        wanted = max(free, batch, 1)
        if self.ready_left is not None and self.ready_left > 0:
            wanted = min(wanted, max(1, math.ceil(self.ready_left / peers)))
        return min(wanted, self.max_batch)
