"""The doorbells of a child: one for all of its queues, several for many, in a Cluster one per slot.

Each has its own connection, so that a wait never delays a settle. One BLPOP cannot wait for keys of two slots
(CROSSSLOT). A child whose queues are in more slots than it may have connections for does not wait at all: it polls
them, less often the longer nothing comes.

A BLPOP costs the server 0.7 µs per key. So a child of many queues divides them over several doorbells: after a message
it waits again at that of its queue alone. The waits at the others continue, and are long. A child that runs long
handlers in the thread of its loop would not hear those: it waits at the first doorbell for the tokens of all queues.
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

__all__ = ["Doorbell", "DoorbellWait", "Doorbells", "make_doorbells"]

_MAX_CONNECTIONS: Final = 16
#: Queues of a doorbell, unless they are more than all doorbells have together.
_QUEUES: Final = 128


class DoorbellWait(msgspec.Struct, frozen=True):
    """A wait for tokens of `queues` until `until`; with a pending lease a receive follows it in the same trip."""

    queues: Sequence[QueueState]
    pending: PendingLease | None
    until: float


class Doorbell(msgspec.Struct):
    """A connection, the queues for whose tokens it waits, and the current wait."""

    connection: Connection
    queues: Sequence[QueueState]
    wait: DoorbellWait | None = None
    #: No wait begins there before this time.
    deaf_until: float = 0.0


class Doorbells:
    """The doorbells of a child; none if it cannot wait for all of its queues.

    `many`: there are several because the queues are many, not because they are in several slots.
    """

    def __init__(self, bells: Sequence[Doorbell], *, many: bool = False) -> None:
        self._bells = tuple(bells)
        self.many = many
        #: Waits continue while the child polls, receives and runs handlers; else, of many, it waits at the first.
        self.patient = False

    def __iter__(self) -> Iterator[Doorbell]:
        return iter(self._bells if self.patient or not self.many else self._bells[:1])

    @property
    def waiting(self) -> bool:
        """Whether it waits at all of them."""
        return bool(self._bells) and all(bell.wait is not None for bell in self)

    @property
    def receiving(self) -> bool:
        """Whether a receive follows a wait in the same trip."""
        return any(bell.wait is not None and bell.wait.pending for bell in self)

    def can_wait(self, now: float) -> bool:
        """Whether a wait can begin at each of them."""
        return bool(self._bells) and all(bell.deaf_until <= now for bell in self)

    def deaf_s(self, now: float) -> float | None:
        """Seconds until a wait can begin at another of them; None if one can at all of them."""
        left_s = (bell.deaf_until - now for bell in self if bell.deaf_until > now)
        return min(left_s, default=None)

    def waited_for(self) -> set[str]:
        """The shards for whose tokens it waits: the receive of a token comes before any other. None in long waits."""
        if self.patient:
            return set()
        return {queue.shard for bell in self if bell.wait for queue in bell.wait.queues}

    def descriptors(self) -> list[int]:
        """Descriptors of the waits; -1 for a connection to be opened again."""
        return [bell.connection.fileno() for bell in self if bell.wait is not None]

    def close(self) -> bool:
        """Cut the waits off, and say whether there were any: a token on its way to one is lost.

        If one of them created a lease after all, the board shows it to the supervisor.
        """
        were_any = any(bell.wait is not None for bell in self._bells)
        for bell in self._bells:
            bell.connection.forget()
            bell.wait = None
        return were_any

    def detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        for bell in self._bells:
            bell.connection.detach()


def make_doorbells(
    queues: Sequence[QueueState], connect: Callable[[], Connection], *, clustered: bool
) -> Doorbells:
    """Make the doorbells of queues, each with a connection from `connect`; none if the queues are in too many slots."""
    if not clustered:
        number = min(_MAX_CONNECTIONS, -(-len(queues) // _QUEUES))
        bells = [Doorbell(connect(), list(queues[first::number])) for first in range(number)]
        return Doorbells(bells, many=number > 1)
    slots: dict[int, list[QueueState]] = {}
    for queue in queues:
        slots.setdefault(key_slot(queue.keys.wake.encode()), []).append(queue)
    if len(slots) > _MAX_CONNECTIONS:
        return Doorbells([])
    return Doorbells([Doorbell(connect(), of_slot) for of_slot in slots.values()])
