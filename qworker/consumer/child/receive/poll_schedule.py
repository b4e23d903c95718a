"""When a child polls its queues next."""

from __future__ import annotations

from math import inf
from typing import Final

__all__ = ["PollSchedule"]

#: While any queue has messages the others are polled this often. With many queues less often: polling one costs a
#: server about 3.5 µs, which is then at most 2 % of its time.
_BUSY_S: Final = 0.05
_BUSY_QUEUE_S: Final = 0.0002
#: Messages and rings since the last poll, per this many queues: from then on a child is busy. A poll of a dozen queues
#: costs about as much as a ring and its message, a glance at 250 queues too.
_POLLED: Final = 12
_GLANCED: Final = 250
#: While a child waits at the doorbells: this often, and less often in a worker of many queues and many children.
_IDLE_S: Final = 2.0
_IDLE_QUEUE_S: Final = 0.0001
#: Without doorbells: this soon, and less often the longer nothing comes.
_FIRST_S: Final = 0.005
_LAST_S: Final = 0.25
_LAST_QUEUE_S: Final = 0.001


class PollSchedule:
    """Says when the next poll of `queues` queues is due. `glances`: it begins with a glance, which costs less."""

    def __init__(self, queues: int, *, glances: bool = False) -> None:
        self._queues = queues
        self._busy_from = queues // (_GLANCED if glances else _POLLED)
        self._last = -inf
        self._requested = queues > 1
        self._activity = 0
        self._pause_s = _FIRST_S

    @property
    def requested(self) -> bool:
        """Whether a poll was made due by `request`."""
        return self._requested

    def request(self) -> None:
        """Make a poll due now."""
        self._requested = True

    def note_activity(self) -> None:
        """Note that a message was received, or a bell rang: the next poll is due soon.

        Among several queues, where a poll costs more than a message, after several of them.
        """
        self._activity += 1

    def begin(self, now: float) -> None:
        """Note that a poll begins."""
        self._last, self._requested, self._activity = now, False, 0

    def end(self, *, successful: bool) -> None:
        """Note whether a poll has found messages."""
        self._pause_s = _FIRST_S if successful else self._pause_s * 2

    def due_in(self, now: float, *, any_ready: bool, can_wait: bool, peers: int) -> float:
        """Seconds until the next poll: 0 if it is due, infinity if none is needed.

        `any_ready`: a queue is known to have messages. `can_wait`: a doorbell can wake the child. `peers`: children of
        the worker, which poll the same queues.
        """
        if self._requested:
            return 0.0
        if not can_wait:
            last_s = min(_IDLE_S, max(_LAST_S, _LAST_QUEUE_S * self._queues))
            self._pause_s = min(self._pause_s, last_s)
            interval_s = self._pause_s
        elif self._queues == 1:
            return inf  # its receive is its poll
        elif any_ready or self._activity > self._busy_from:
            interval_s = min(_IDLE_S, max(_BUSY_S, _BUSY_QUEUE_S * self._queues))
        else:
            interval_s = max(_IDLE_S, _IDLE_QUEUE_S * self._queues * peers)
        return max(0.0, self._last + interval_s - now)
