"""The doorbells of a child: one for all of its queues, in a Cluster one per slot.

Each has its own connection, so that a wait never delays a settle. One BLPOP cannot wait for keys of two slots
(CROSSSLOT). A child whose queues are in more slots than it may have connections for does not wait at all: it polls
them, less often the longer nothing comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from redis.crc import key_slot

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import PendingLease

__all__ = ["Doorbell", "Doorbells", "Wait", "make_doorbells"]

_MAX_CONNECTIONS: Final = 16


class Wait(msgspec.Struct, frozen=True):
    """A wait at a doorbell until `until`; with a pending lease a receive follows it in the same trip."""

    pending: PendingLease | None
    until: float


class Doorbell(msgspec.Struct):
    """A connection, the queues for whose tokens it waits, and the current wait."""

    connection: Connection
    queues: Sequence[QueueState]
    wait: Wait | None = None
    #: It is not waited at until then.
    deaf_until: float = 0.0


class Doorbells:
    """The doorbells of a child; none if it cannot wait for all of its queues."""

    def __init__(self, bells: Sequence[Doorbell]) -> None:
        self._bells = tuple(bells)

    def __iter__(self) -> Iterator[Doorbell]:
        return iter(self._bells)

    @property
    def waiting(self) -> bool:
        """Whether it waits at all of them."""
        return bool(self._bells) and all(bell.wait is not None for bell in self)

    @property
    def receiving(self) -> bool:
        """Whether a receive follows a wait in the same trip."""
        return any(bell.wait is not None and bell.wait.pending for bell in self)

    def can_wait(self, now: float) -> bool:
        """Whether all of them can be waited at."""
        return bool(self._bells) and all(bell.deaf_until <= now for bell in self)

    def deaf_s(self, now: float) -> float | None:
        """Seconds until another of them can be waited at; None if all can."""
        left_s = (bell.deaf_until - now for bell in self if bell.deaf_until > now)
        return min(left_s, default=None)

    def waited_for(self) -> set[str]:
        """The shards for whose tokens it waits: the receive of a token comes before any other."""
        return {queue.shard for bell in self if bell.wait for queue in bell.queues}

    def descriptors(self) -> list[int]:
        """Descriptors of the waits; -1 for a connection to be opened again."""
        return [bell.connection.fileno() for bell in self if bell.wait is not None]

    def close(self) -> None:
        """Cut the waits off. If one of them created a lease after all, the board shows it to the supervisor."""
        for bell in self:
            bell.connection.forget()
            bell.wait = None

    def detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        for bell in self:
            bell.connection.detach()


def make_doorbells(
    queues: Sequence[QueueState], connect: Callable[[], Connection], *, clustered: bool
) -> Doorbells:
    """Make the doorbells of queues, each with a connection from `connect`; none if the queues are in too many slots."""
    if not clustered:
        return Doorbells([Doorbell(connect(), list(queues))])
    slots: dict[int, list[QueueState]] = {}
    for queue in queues:
        slots.setdefault(key_slot(queue.keys.wake.encode()), []).append(queue)
    if len(slots) > _MAX_CONNECTIONS:
        return Doorbells([])
    return Doorbells([Doorbell(connect(), of_slot) for of_slot in slots.values()])
