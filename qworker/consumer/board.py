"""The board: shared memory in which a child says what it is doing, for its supervisor.

A child may die at any instruction, and a handler may hold the GIL for an hour; the supervisor still has to know which
messages run, which wait and which are done. So the child writes marks into memory that outlives it. Each value has one
writer (named below) and is one aligned word or byte, so no lock is needed:

    header    beat, state, counts                     child;  stop, peers: supervisor
    lease     id, queue, count, deadline, marks       child;  recall, and the deadline once it is held: supervisor
    running   lease, place, start, limit              child, one slot per handler that may run at a time
    counters  outcomes and histograms per task        child; see counters.py
    orders    paused tasks, a message to cancel       supervisor; see orders.py

Two rules make a recall (the supervisor takes back what has not started) safe without a lock: the child marks a message
RUNNING and *then* looks at `recall`; the supervisor sets `recall`, waits, and *then* reads the marks. One of the two
always sees the other.

A handler can write anywhere, here as well. What no child writes is skipped by whoever reads a board and noted as
`spoiled`: a lease that is not seen runs out, and those of other children are kept.

The memory is a file, and the file goes on behind the board: there a crashing child leaves its last words, see crash.py.
Times are seconds of `boot_time()`, a clock that also counts while the machine is suspended.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from qworker.consumer.counters import COUNTERS_BYTES, OUTCOMES, TaskCounters, TaskCounts
from qworker.consumer.orders import ORDERS_BYTES, Orders

__all__ = [
    "MAX_LEASE",
    "Board",
    "ChildState",
    "LeaseState",
    "LeaseView",
    "Mark",
    "RunningView",
    "boot_time",
    "memory_file",
]

#: Messages of one lease at most.
MAX_LEASE: Final = 1000

_HEADER_BYTES: Final = 256
# A lease: state, recall, id (78 bytes, ended by a zero); from byte 80 on words; then a mark per message.
_WORDS_AT: Final = 80
_MARKS_AT: Final = 136
_LEASE_BYTES: Final = _MARKS_AT + 1024
_QUEUE, _COUNT, _VISIBILITY, _DEADLINE, _BEGUN, _DELIVERED, _DELIVERED_MS = range(7)
_NO_MARKS: Final = bytes(1024)
_RUNNING_WORDS: Final = 4
_LEASE_ID: Final = re.compile(rb"[A-Za-z0-9._-]+")
#: What no visibility timeout, no time of the clock and no time in ms reaches.
_MOST_VISIBILITY_S: Final = 24 * 3600.0
_MOST_S: Final = 1e9
_MOST_MS: Final = 2**53
_RECALLED: Final = 1
_LOST: Final = 3
#: A mark takes three bits of its byte; the others are the tag of the batch with which the message was counted, or 0.
_MARK_BITS: Final = 7
_TAGS: Final = 31
_MARKS: Final = bytes(byte & _MARK_BITS for byte in range(256))
# Words of the header: batches that are counted, and of these the added ones; what the last one brings a task to.
_COUNTED, _ADDED, _COUNTED_AT, _COUNTS = 8, 9, 10, 11
_COUNTS_END: Final = _COUNTS + len(OUTCOMES) + 2

if hasattr(time, "CLOCK_BOOTTIME"):

    def boot_time() -> float:
        """Seconds of a clock that never jumps and counts suspended time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock counts suspended time where the system offers it
    boot_time = time.monotonic


class Mark(IntEnum):
    """What has become of one message of a lease."""

    UNSTARTED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    GONE = 4  # given up by the child, which will release it
    RECALLED = 5  # released by the supervisor
    RELEASED = 6  # its handler wants it to be released


class LeaseState(IntEnum):
    """A lease slot: free, entered before the call that may create the lease, or held."""

    FREE = 0
    PENDING = 1
    HELD = 2


class ChildState(IntEnum):
    """How far a child is."""

    STARTING = 0
    READY = 1
    STOPPING = 2
    RECYCLED = 3  # stopping, because it has handled as many messages as it was to


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A copy of one lease slot, as the supervisor reads it. `begun`: when it was entered, or held if it is.

    `delivered`: when it was received; also in ms by the server's clock. Both are 0 without a journal.
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


@dataclass(frozen=True, slots=True)
class RunningView:
    """A copy of one running slot: a message in a handler since `started`, until `limit` (0: no limit)."""

    slot: int
    lease: int
    place: int
    task: int
    started: float
    limit: float


_ENDED: Final = (Mark.DONE, Mark.FAILED, Mark.RELEASED)


def _tag(number: int) -> int:
    """What the marks of a batch that is counted hold beside: never 0, and again only after thirty others."""
    return (number % _TAGS + 1) << 3


def memory_file(name: str) -> int:
    """Open a file without a name in the file system, which children may inherit by its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Word:
    """A whole number of the header."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, board: Board, owner: type[Board]) -> int:
        return board.words[self._at]

    def __set__(self, board: Board, number: int) -> None:
        board.words[self._at] = number


class Board:
    """One child's board. `slots` handlers may run at a time; there are some more lease slots than that."""

    #: Messages whose handler has ended, those of them that failed, and outcomes that came too late.
    handled = _Word(2)
    failed = _Word(3)
    stale = _Word(4)
    #: The thread of the child, by its native id, that may be sent `stacks.STACK_SIGNAL`; 0 as long as none may.
    stacks_thread = _Word(7)

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        #: Whether something was read here that no child writes.
        self.spoiled = False
        self.leases = slots + 32
        self._lease_at = _HEADER_BYTES
        self._running_at = self._lease_at + self.leases * _LEASE_BYTES
        self._running_word = self._running_at // 8
        counters_at = self._running_at + slots * _RUNNING_WORDS * 8
        orders_at = counters_at + COUNTERS_BYTES
        self.size = orders_at + ORDERS_BYTES
        # A sparse file: pages that nobody touches cost nothing.
        if os.fstat(descriptor).st_size < self.size:
            os.ftruncate(descriptor, self.size)
        self._map = mmap.mmap(descriptor, self.size)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")
        self.floats = self.bytes.cast("d")
        self.counters = TaskCounters(self.words, self.floats, counters_at // 8)
        self.orders = Orders(self.bytes, self.words, self.floats, orders_at)

    @classmethod
    def create(cls, slots: int) -> Board:
        """Make a board that children may inherit by its descriptor."""
        return cls(memory_file("qworker-board"), slots)

    def close(self) -> None:
        """Close the descriptor. The memory stays for whoever looks at it just now, and goes with the board."""
        os.close(self.descriptor)

    # -- header --------------------------------------------------------------------------------

    @property
    def beat(self) -> float:
        """When the child last spoke to the server with success."""
        return self.floats[0]

    @beat.setter
    def beat(self, at: float) -> None:
        self.floats[0] = at

    @property
    def state(self) -> ChildState:
        """How far the child is; READY where that cannot be read, so that its end is taken for a crash."""
        number = self.words[1]
        if number > ChildState.RECYCLED:
            self.spoiled = True
            return ChildState.READY
        return ChildState(number)

    @state.setter
    def state(self, state: ChildState) -> None:
        self.words[1] = state

    @property
    def stop(self) -> bool:
        """Whether the supervisor wants the child to end."""
        return self.words[5] != 0

    @stop.setter
    def stop(self, wanted: bool) -> None:
        self.words[5] = int(wanted)

    @property
    def peers(self) -> int:
        """Children that share the queues, this one included; at least 1."""
        return max(1, self.words[6])

    @peers.setter
    def peers(self, number: int) -> None:
        self.words[6] = number

    # -- leases, as the child writes them ------------------------------------------------------

    def lease_base(self, slot: int) -> int:
        """Where a lease slot begins, in bytes."""
        return self._lease_at + slot * _LEASE_BYTES

    def marks_at(self, slot: int) -> int:
        """Where the marks of a lease begin in `bytes`."""
        return self.lease_base(slot) + _MARKS_AT

    def deadline_at(self, slot: int) -> int:
        """Where the deadline of a lease stands in `floats`."""
        return (self.lease_base(slot) + _WORDS_AT) // 8 + _DEADLINE

    def enter_lease(self, slot: int, lease_id: str, queue: int, visibility_s: float) -> float:
        """Note a lease before the call that may create it; returns the time, from which its visibility counts."""
        base = self.lease_base(slot)
        name = lease_id.encode()
        now = boot_time()
        self.bytes[base + 1] = 0
        self.bytes[base + 2 : base + 2 + len(name) + 1] = name + b"\0"
        word = (base + _WORDS_AT) // 8
        self.words[word + _QUEUE] = queue
        self.words[word + _COUNT] = 0
        self.floats[word + _VISIBILITY] = visibility_s
        self.floats[word + _DEADLINE] = now + visibility_s
        self.floats[word + _BEGUN] = now
        self.words[word + _DELIVERED_MS] = 0
        self.bytes[base + _MARKS_AT : base + _LEASE_BYTES] = _NO_MARKS
        # Last: from here on the supervisor minds the slot.
        self.bytes[base] = LeaseState.PENDING
        return now

    def hold_lease(self, slot: int, count: int, deadline: float, visibility_s: float) -> None:
        """Note that the lease exists and holds `count` messages; `visibility_s` is how far an extension reaches."""
        base = self.lease_base(slot)
        word = (base + _WORDS_AT) // 8
        self.words[word + _COUNT] = count
        self.floats[word + _VISIBILITY] = visibility_s
        self.floats[word + _DEADLINE] = deadline
        self.floats[word + _BEGUN] = boot_time()
        self.bytes[base] = LeaseState.HELD

    def note_delivered(self, slot: int, delivered: float, delivered_ms: int) -> None:
        """Note when a lease was received, for the journal; before it is held."""
        word = (self.lease_base(slot) + _WORDS_AT) // 8
        self.floats[word + _DELIVERED] = delivered
        self.words[word + _DELIVERED_MS] = delivered_ms

    def free_lease(self, slot: int) -> None:
        """Note that nothing of the lease is left."""
        self.bytes[self.lease_base(slot)] = LeaseState.FREE

    def mark(self, slot: int, place: int, mark: Mark) -> None:
        """Set the mark of one message."""
        self.bytes[self.marks_at(slot) + place] = mark

    def recalled(self, slot: int) -> bool:
        """Whether the supervisor has taken back what has not started."""
        return self.bytes[self.lease_base(slot) + 1] != 0

    def lost(self, slot: int) -> bool:
        """Whether the lease has run out."""
        return self.bytes[self.lease_base(slot) + 1] == _LOST

    # -- leases, as the supervisor minds them --------------------------------------------------

    def recall(self, slot: int) -> None:
        """Take back what has not started; read the marks 10 ms later."""
        self.bytes[self.lease_base(slot) + 1] |= _RECALLED

    def lose(self, slot: int) -> None:
        """Say that the lease has run out: what has not started is not to, and async handlers are cancelled."""
        self.bytes[self.lease_base(slot) + 1] = _LOST

    def set_deadline(self, slot: int, deadline: float) -> None:
        """Note an extension."""
        self.floats[self.deadline_at(slot)] = deadline

    def lease(self, slot: int) -> LeaseView | None:
        """Copy a lease slot; None where it is free, or spoiled."""
        base = self.lease_base(slot)
        state = self.bytes[base]
        if state == LeaseState.FREE:
            return None
        word = (base + _WORDS_AT) // 8
        name = bytes(self.bytes[base + 2 : base + _WORDS_AT]).partition(b"\0")[0]
        count = self.words[word + _COUNT]
        visibility_s, deadline, begun, delivered = (
            self.floats[word + each] for each in (_VISIBILITY, _DEADLINE, _BEGUN, _DELIVERED)
        )
        delivered_ms = self.words[word + _DELIVERED_MS]
        if not (
            state <= LeaseState.HELD
            and _LEASE_ID.fullmatch(name)
            and count <= MAX_LEASE
            and 0 <= visibility_s <= _MOST_VISIBILITY_S
            and all(0 <= each <= _MOST_S for each in (deadline, begun, delivered))
            and delivered_ms <= _MOST_MS
        ):
            self.spoiled = True
            return None
        marks_at = base + _MARKS_AT
        return LeaseView(
            slot,
            LeaseState(state),
            self.bytes[base + 1] != 0,
            name.decode(),
            self.words[word + _QUEUE],
            count,
            visibility_s,
            deadline,
            begun,
            delivered,
            delivered_ms,
            bytes(self.bytes[marks_at : marks_at + count]).translate(_MARKS),
        )

    def held_leases(self) -> list[LeaseView]:
        """Copy every lease slot that is not free, nor spoiled."""
        views = (self.lease(slot) for slot in range(self.leases))
        return [view for view in views if view is not None]

    # -- counting ------------------------------------------------------------------------------

    def count(self, task: int, counts: TaskCounts, marks_at: Iterable[int], failed: int) -> None:
        """Count messages of a task that have ended, `failed` of them, and say so on their marks.

        Each is counted once, at whatever instruction the process dies: with the one word `_COUNTED` the batch that the
        marks name counts, and what it brings the counts to is written before.
        """
        words, marks = self.words, self.bytes
        number = words[_COUNTED] + 1
        tag = _tag(number)
        for at in marks_at:
            marks[at] = marks[at] & _MARK_BITS | tag
        at = self.counters.outcomes_at(task)
        words[_COUNTED_AT] = at
        for place, amount in enumerate(counts.outcomes):
            words[_COUNTS + place] = words[at + place] + amount
        words[_COUNTS_END - 2] = self.handled + sum(counts.outcomes)
        words[_COUNTS_END - 1] = self.failed + failed
        words[_COUNTED] = number
        self._add_counted()
        words[_ADDED] = number
        self.counters.add_times(task, counts)

    def finish_counting(self) -> None:
        """Add what a dead child had counted and not added yet."""
        at, first = self.words[_COUNTED_AT], self._running_word + self.slots * _RUNNING_WORDS
        if self.words[_COUNTED] != self.words[_ADDED] and first <= at < len(self.words) - 64:
            self._add_counted()
            self.words[_ADDED] = self.words[_COUNTED]

    def _add_counted(self) -> None:
        words, at = self.words, self.words[_COUNTED_AT]
        words[at : at + len(OUTCOMES)] = words[_COUNTS : _COUNTS_END - 2]
        self.handled, self.failed = words[_COUNTS_END - 2], words[_COUNTS_END - 1]

    def uncounted(self, slot: int) -> list[int]:
        """Places in a dead child's lease whose messages have ended and were not counted."""
        at, coming = self.marks_at(slot), _tag(self.words[_COUNTED] + 1)
        count = min(self.words[(self.lease_base(slot) + _WORDS_AT) // 8 + _COUNT], MAX_LEASE)
        return [
            place
            for place, byte in enumerate(bytes(self.bytes[at : at + count]))
            if byte & _MARK_BITS in _ENDED and byte & ~_MARK_BITS in (0, coming)
        ]

    # -- running handlers ----------------------------------------------------------------------

    def begin(self, slot: int, lease: int, place: int, task: int, now: float, limit: float) -> None:
        """Note that a handler begins; `limit` is when it must have ended, 0 for never."""
        at = self._running_word + slot * _RUNNING_WORDS
        self.words[at + 1] = task
        self.floats[at + 2] = now
        self.floats[at + 3] = limit
        # Last, and never 0: from here on the supervisor minds the slot.
        self.words[at] = (lease << 16) + place + 1

    def end(self, slot: int) -> None:
        """Note that the handler of a slot has ended."""
        self.words[self.running_word(slot)] = 0

    def running_word(self, slot: int) -> int:
        """The place in `words` that is 0 while no handler runs in the slot."""
        return self._running_word + slot * _RUNNING_WORDS

    def running(self) -> list[RunningView]:
        """Copy the slots in which a handler runs."""
        found = []
        for slot in range(self.slots):
            at = self._running_word + slot * _RUNNING_WORDS
            packed = self.words[at]
            if not packed:
                continue
            lease, place = packed >> 16, (packed & 0xFFFF) - 1
            started = self.floats[at + 2]
            if lease < self.leases and 0 <= place < MAX_LEASE and 0 <= started <= _MOST_S:
                task, limit = self.words[at + 1], self.floats[at + 3]
                found.append(RunningView(slot, lease, place, task, started, limit))
            else:
                self.spoiled = True
        return found
