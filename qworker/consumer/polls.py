"""When a child asks all of its queues whether they have messages, and in which calls.

A bell rings for what our own scripts make ready. Polls find the rest: what others push, and what lies in other queues
while one of them keeps the child busy. One call covers up to 500 queues, so that the time until a message is seen does
not grow with queues times round trip. In a Cluster there is a call for each slot, all in one trip per node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from redis.crc import key_slot

from qworker.client.commands.polling import MAX_POLLED

if TYPE_CHECKING:
    from qworker.consumer.pace import QueuePace

__all__ = ["PollSchedule", "calls_of"]

#: While any queue has messages the others are asked this often. Of many queues less often: asking for one costs a
#: server about 3.5 µs, which is then at most 2 % of its time.
_BUSY_S: Final = 0.05
_BUSY_QUEUE_S: Final = 0.0002
#: While a child waits at the doorbells: this often, and less often in a worker of many queues and many children.
_IDLE_S: Final = 2.0
_IDLE_QUEUE_S: Final = 0.0001
#: Where there is no waiting: this soon, and less often the longer nothing comes.
_FIRST_S: Final = 0.005
_LAST_S: Final = 0.25
_LAST_QUEUE_S: Final = 0.001


class PollSchedule:
    """Says when to poll next. `number` queues; `peers`: children of the worker, which poll the same ones."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._last = -inf
        self._wanted = number > 1
        self._changed = False
        self._pause_s = _FIRST_S

    def want(self) -> None:
        """Poll at the next occasion."""
        self._wanted = True

    def change(self) -> None:
        """Note that something was received, or rang: poll again soon."""
        self._changed = True

    def begin(self, now: float) -> None:
        """Note that a poll begins."""
        self._last, self._wanted, self._changed = now, False, False

    def end(self, *, found: bool) -> None:
        """Note whether a poll has found anything."""
        self._pause_s = _FIRST_S if found else self._pause_s * 2

    def due_in(self, now: float, *, filled: bool, waits: bool, peers: int) -> float:
        """Seconds until the next poll; 0 where it is due, infinity where none is needed.

        `filled`: a queue is known to have messages. `waits`: a bell wakes the child.
        """
        if self._wanted:
            return 0.0
        if not waits:
            last_s = min(_IDLE_S, max(_LAST_S, _LAST_QUEUE_S * self._number))
            self._pause_s = min(self._pause_s, last_s)
            interval_s = self._pause_s
        elif self._number == 1:
            return inf  # its receive is its poll
        elif filled or self._changed:
            interval_s = min(_IDLE_S, max(_BUSY_S, _BUSY_QUEUE_S * self._number))
        else:
            interval_s = max(_IDLE_S, _IDLE_QUEUE_S * self._number * peers)
        return max(0.0, self._last + interval_s - now)


def calls_of(queues: Sequence[QueuePace], *, clustered: bool) -> Iterator[list[QueuePace]]:
    """Divide queues into those of one call each: up to 500, in a Cluster of one slot."""
    slots: dict[int, list[QueuePace]] = {}
    for queue in queues:
        slot = int(key_slot(queue.keys.wake.encode())) if clustered else 0
        slots.setdefault(slot, []).append(queue)
    for some in slots.values():
        for first in range(0, len(some), MAX_POLLED):
            yield some[first : first + MAX_POLLED]
