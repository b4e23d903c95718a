"""The lease slots of a board: which leases a child holds, how far each message of them is, and their deadlines.

A slot is entered before the call that may create its lease, so that no lease exists that is not on the board.
"""

from __future__ import annotations

import re
from typing import Final

from qworker.consumer.board.clock import MAX_BOOT_S, boot_time
from qworker.consumer.board.states import MARK_BITS, LeaseState, LeaseView, Mark

__all__ = ["LEASE_BYTES", "LEASE_ID", "LEASE_ID_BYTES", "MAX_LEASE", "LeaseSlots"]

#: Most messages of one lease.
MAX_LEASE: Final = 1000

# A lease: state, recall, id (78 bytes, ended by a zero); from byte 80 on words; then a mark per message.
_WORDS_AT: Final = 80
_MARKS_AT: Final = 136
LEASE_BYTES: Final = _MARKS_AT + 1024
_QUEUE, _COUNT, _VISIBILITY, _DEADLINE, _BEGUN, _DELIVERED, _DELIVERED_MS = range(7)
_NO_MARKS: Final = bytes(1024)
#: The id of a lease, and the bytes that it may take.
LEASE_ID: Final = re.compile(rb"[A-Za-z0-9._-]+")
LEASE_ID_BYTES: Final = 78
#: No visibility timeout and no time in ms is larger.
_MAX_VISIBILITY_S: Final = 24 * 3600.0
_MAX_MS: Final = 2**53
_RECALLED: Final = 1
_LOST: Final = 3
_MARKS: Final = bytes(byte & MARK_BITS for byte in range(256))


class LeaseSlots:
    """The leases of one child, by their slots. `number` of them fit on the board."""

    def __init__(
        self,
        memory: memoryview,
        words: memoryview[int],
        floats: memoryview[float],
        at: int,
        number: int,
    ) -> None:
        self._bytes = memory
        self._words = words
        self._floats = floats
        self._at = at
        self.number = number
        #: Whether a slot was read that no child writes.
        self.spoiled = False

    def marks_at(self, slot: int) -> int:
        """Where the marks of a lease begin in the board's `bytes`."""
        return self._base(slot) + _MARKS_AT

    def recall_at(self, slot: int) -> int:
        """Where the board's `bytes` say whether a lease is recalled; 0 if not."""
        return self._base(slot) + 1

    def deadline_at(self, slot: int) -> int:
        """The index of a lease's deadline in the board's `floats`."""
        return self._word(slot) + _DEADLINE

    def count(self, slot: int) -> int:
        """The number of messages that a lease was held with, at most `MAX_LEASE`."""
        return min(self._words[self._word(slot) + _COUNT], MAX_LEASE)

    def _base(self, slot: int) -> int:
        return self._at + slot * LEASE_BYTES

    def _word(self, slot: int) -> int:
        return (self._base(slot) + _WORDS_AT) // 8

    # -- as the child writes them --------------------------------------------------------------

    def enter(self, slot: int, lease_id: str, queue: int, visibility_s: float) -> float:
        """Note a lease before the call that may create it; returns the time from which its visibility counts."""
        base, word = self._base(slot), self._word(slot)
        name = lease_id.encode()
        now = boot_time()
        self._bytes[base + 1] = 0
        self._bytes[base + 2 : base + 2 + len(name) + 1] = name + b"\0"
        self._words[word + _QUEUE] = queue
        self._words[word + _COUNT] = 0
        self._floats[word + _VISIBILITY] = visibility_s
        self._floats[word + _DEADLINE] = now + visibility_s
        self._floats[word + _BEGUN] = now
        self._words[word + _DELIVERED_MS] = 0
        self._bytes[base + _MARKS_AT : base + LEASE_BYTES] = _NO_MARKS
        # Last: from here on the supervisor keeps the lease.
        self._bytes[base] = LeaseState.PENDING
        return now

    def hold(self, slot: int, count: int, deadline: float, visibility_s: float) -> None:
        """Note that the lease exists and holds `count` messages; `visibility_s` is how far an extension reaches."""
        word = self._word(slot)
        self._words[word + _COUNT] = count
        self._floats[word + _VISIBILITY] = visibility_s
        self._floats[word + _DEADLINE] = deadline
        self._floats[word + _BEGUN] = boot_time()
        self._bytes[self._base(slot)] = LeaseState.HELD

    def note_delivered(self, slot: int, delivered: float, delivered_ms: int) -> None:
        """Note when a lease was received, for the journal; before it is held."""
        word = self._word(slot)
        self._floats[word + _DELIVERED] = delivered
        self._words[word + _DELIVERED_MS] = delivered_ms

    def free(self, slot: int) -> None:
        """Note that the lease has no messages left."""
        self._bytes[self._base(slot)] = LeaseState.FREE

    def recalled(self, slot: int) -> bool:
        """Whether the supervisor has taken back unstarted messages."""
        return self._bytes[self._base(slot) + 1] != 0

    def lost(self, slot: int) -> bool:
        """Whether the lease has run out."""
        return self._bytes[self._base(slot) + 1] == _LOST

    # -- as the supervisor keeps them ----------------------------------------------------------

    def mark(self, slot: int, position: int, mark: Mark) -> None:
        """Set the mark of one message."""
        self._bytes[self.marks_at(slot) + position] = mark

    def recall(self, slot: int) -> None:
        """Take back unstarted messages; read the marks 10 ms later."""
        self._bytes[self._base(slot) + 1] |= _RECALLED

    def lose(self, slot: int) -> None:
        """Note that the lease has run out: none of its messages starts now, and async handlers are cancelled."""
        self._bytes[self._base(slot) + 1] = _LOST

    def set_deadline(self, slot: int, deadline: float) -> None:
        """Note an extension."""
        self._floats[self.deadline_at(slot)] = deadline

    def view(self, slot: int) -> LeaseView | None:
        """Copy a lease slot; None if it is free or spoiled."""
        base, word = self._base(slot), self._word(slot)
        state = self._bytes[base]
        if state == LeaseState.FREE:
            return None
        name = bytes(self._bytes[base + 2 : base + _WORDS_AT]).partition(b"\0")[0]
        count = self._words[word + _COUNT]
        visibility_s, deadline, begun, delivered = (
            self._floats[word + number] for number in (_VISIBILITY, _DEADLINE, _BEGUN, _DELIVERED)
        )
        delivered_ms = self._words[word + _DELIVERED_MS]
        if not (
            state <= LeaseState.HELD
            and LEASE_ID.fullmatch(name)
            and count <= MAX_LEASE
            and 0 <= visibility_s <= _MAX_VISIBILITY_S
            and all(0 <= time <= MAX_BOOT_S for time in (deadline, begun, delivered))
            and delivered_ms <= _MAX_MS
        ):
            self.spoiled = True
            return None
        marks_at = base + _MARKS_AT
        return LeaseView(
            slot,
            LeaseState(state),
            self._bytes[base + 1] != 0,
            name.decode(),
            self._words[word + _QUEUE],
            count,
            visibility_s,
            deadline,
            begun,
            delivered,
            delivered_ms,
            bytes(self._bytes[marks_at : marks_at + count]).translate(_MARKS),
        )

    def views(self) -> list[LeaseView]:
        """Copy every lease slot that is neither free nor spoiled."""
        views = (self.view(slot) for slot in range(self.number))
        return [view for view in views if view is not None]
