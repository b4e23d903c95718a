"""What a board says about messages, leases and handlers, and copies of it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from qworker.wire.numbers import whole

__all__ = ["MARK_BITS", "ChildState", "LeaseState", "LeaseView", "Mark", "RunningView"]


#: A mark takes three bits of its byte, see tally.py for the others.
MARK_BITS: Final = 7


class Mark(IntEnum):
    """The state of one message of a lease."""

    UNSTARTED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    GONE = 4  # given up by the child, which releases it next
    RECALLED = 5  # released by the supervisor
    RELEASED = 6  # to be released, because its handler asked for it
    SETTLING = 7  # handled; its end must be announced, which only the child's settle does


class LeaseState(IntEnum):
    """A lease slot: free, entered before the call that may create the lease, or held."""

    FREE = 0
    PENDING = 1
    HELD = 2


class ChildState(IntEnum):
    """The state of a child."""

    STARTING = 0
    READY = 1
    STOPPING = 2
    RECYCLED = 3  # stopping, because it has handled max_messages


class LeaseView(msgspec.Struct, frozen=True):
    """A copy of one lease slot. `begun`: when the lease was held, or entered if it is only pending.

    `delivered`: when it was received, also in ms by the server's clock. Both are 0 without a journal.
    """

    slot: int
    state: LeaseState
    recalled: bool
    lease_id: str
    queue: int
    count: int
    visibility_s: float
    deadline: float
    begun: float
    delivered: float
    delivered_ms: int
    marks: bytes

    def index_of(self, position: int) -> str:
        """The index in the lease of the message at a position: 0 if it is alone, else they count from 1."""
        return "0" if self.count == 1 else str(position + 1)

    def position_of(self, index: str) -> int | None:
        """The position of the message with an index in the lease; None if there is no such message."""
        number = whole(index)
        if number is None:
            return None
        position = number if self.count == 1 else number - 1
        return position if 0 <= position < len(self.marks) else None


class RunningView(msgspec.Struct, frozen=True):
    """A copy of one running slot: a handler that began at `started` and must end by `limit` (0: no limit).

    `lease`: the slot of its message's lease, `position`: that of the message in the lease.
    """

    slot: int
    lease: int
    position: int
    task: int
    started: float
    limit: float
