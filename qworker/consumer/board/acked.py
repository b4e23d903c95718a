"""Who the messages are that were acked before their start (at most once): their leases do not hold them any more.

If the child dies while they run, or between their ack and their start, its supervisor finds here what to log and to
count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.consumer.board.leases import MAX_LEASE
from qworker.wire.envelope import ItemKind, kind_of
from qworker.wire.ids import lease_number

if TYPE_CHECKING:
    from qworker.consumer.board.states import LeaseView

__all__ = ["ACKED_BYTES", "AckedMessage", "AckedMessages"]

# The number of its lease, which tells a message from those of earlier leases in the slot; its task; where its item
# begins. Packing cuts the item off behind the receives of the longest header: a slice for each message costs more.
_MESSAGE: Final = struct.Struct("=QQ96s")
#: For the messages of one lease.
ACKED_BYTES: Final = MAX_LEASE * _MESSAGE.size
_HEADER: Final = re.compile(rb"q1 ([A-Za-z0-9._-]{1,64}) \d{1,16} (\d{1,6}) ")


class AckedMessage(msgspec.Struct, frozen=True):
    """A message that was acked before its start. `task`: its number on the board."""

    message_id: str
    receive_count: int
    task: int


class AckedMessages:
    """The acked messages of one child, by slot of their lease and position in it: the child writes them."""

    def __init__(self, memory: memoryview, at: int) -> None:
        self._bytes = memory
        self._at = at

    def note(self, slot: int, lease_id: str, messages: Iterable[tuple[int, int, bytes]]) -> None:
        """Note messages of a lease before they are acked: position, number of the task, item."""
        memory, pack, size = self._bytes, _MESSAGE.pack_into, _MESSAGE.size
        number, base = lease_number(lease_id), self._at + slot * ACKED_BYTES
        for position, task, item in messages:
            pack(memory, base + position * size, number, task, item)

    def forget(self, slot: int, position: int) -> None:
        """Forget a message whose ack has not counted: it is not this child's."""
        _MESSAGE.pack_into(
            self._bytes, self._at + slot * ACKED_BYTES + position * _MESSAGE.size, 0, 0, b""
        )

    def of(self, lease: LeaseView) -> dict[int, AckedMessage]:
        """Read the acked messages of a dead child's lease, by position."""
        number, base = lease_number(lease.lease_id), self._at + lease.slot * ACKED_BYTES
        found = {}
        for position in range(lease.count):
            of_lease, task, item = _MESSAGE.unpack_from(
                self._bytes, base + position * _MESSAGE.size
            )
            if of_lease != number:
                continue
            # A handler may have written here: it may be anything.
            if header := _HEADER.match(item):
                found[position] = AckedMessage(header[1].decode(), int(header[2]) + 1, task)
            elif kind_of(item) is ItemKind.PLAIN:
                adopted_id = f"{lease.lease_id}.{lease.index_of(position)}"
                found[position] = AckedMessage(adopted_id, 1, task)
        return found
