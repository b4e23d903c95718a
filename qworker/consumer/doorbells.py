"""The connections over which a child waits: one at the doorbells of all its queues, in a Cluster one per slot.

One BLPOP cannot wait for keys of two slots (CROSSSLOT). A child of more queues than it may have connections for does
not wait at all: it looks at each again and again, less often the longer nothing comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redis.crc import key_slot

if TYPE_CHECKING:
    from qworker.consumer.hand import Entry
    from qworker.consumer.link import Link
    from qworker.consumer.pace import QueuePace

__all__ = ["Doorbell", "Wait", "doorbells_of"]

_MOST: Final = 16


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait at a doorbell; with an entry a receive follows in the same trip."""

    entry: Entry | None
    until: float


@dataclass(slots=True)
class Doorbell:
    """A connection, the queues for whose tokens it waits, and the wait that is going on."""

    link: Link
    queues: Sequence[QueuePace]
    wait: Wait | None = None
    #: Left alone until then.
    deaf_until: float = 0.0


def doorbells_of(
    queues: Sequence[QueuePace], link: Callable[[], Link], *, clustered: bool
) -> list[Doorbell]:
    """Make the doorbells of queues; none where these are in too many slots. `link` makes a connection."""
    if not clustered:
        return [Doorbell(link(), list(queues))]
    slots: dict[int, list[QueuePace]] = {}
    for queue in queues:
        slots.setdefault(key_slot(queue.keys.wake.encode()), []).append(queue)
    return [Doorbell(link(), some) for some in slots.values()] if len(slots) <= _MOST else []
