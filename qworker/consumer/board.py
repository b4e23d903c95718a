"""The board: shared memory in which a child says what it is doing, for its supervisor.

A child may die at any instruction, and a handler may hold the GIL for an hour; the supervisor still has to know which
messages run, which wait and which are done. So the child writes marks into memory that outlives it. Each value has one
writer (named below) and is one aligned word or byte, so no lock is needed:

    header    beat, state, counts                     child;  stop, peers: supervisor
    lease     id, queue, count, deadline, marks       child;  recall, and the deadline once it is held: supervisor
    running   lease, place, start, limit              child, one slot per handler that may run at a time
    task      outcomes and histograms                 child

Two rules make a recall (the supervisor takes back what has not started) safe without a lock: the child marks a message
RUNNING and *then* looks at `recall`; the supervisor sets `recall`, waits, and *then* reads the marks. One of the two
always sees the other.

Times are seconds of `boot_time()`, a clock that also counts while the machine is suspended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final

__all__ = [
    "BUCKETS_S",
    "MAX_LEASE",
    "MAX_TASKS",
    "Board",
    "ChildState",
    "LeaseState",
    "LeaseView",
    "Mark",
    "OUTCOMES",
    "boot_time",
]

#: Messages of one lease at most.
MAX_LEASE: Final = 1000
#: Tasks whose metrics are kept; further ones share the last block.
MAX_TASKS: Final = 4096
#: Outcomes counted per task, in this order.
OUTCOMES: Final = ("acked", "nacked", "buried", "released", "discarded", "expired")
#: Upper bounds of the histogram buckets in seconds; the last bucket is open.
BUCKETS_S: Final = (
    0.0001,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
)

_HEADER_BYTES: Final = 256
_LEASE_HEAD_BYTES: Final = 128
_LEASE_BYTES: Final = _LEASE_HEAD_BYTES + 1024
_RUNNING_WORDS: Final = 4
_RUNNING_BYTES: Final = 8 * _RUNNING_WORDS
_TASK_WORDS: Final = 64
_BUCKETS: Final = len(BUCKETS_S) + 1
# Offsets in a task block, in words.
_RUN_AT: Final = 8
_WAIT_AT: Final = _RUN_AT + _BUCKETS + 1

#: Seconds of a clock that never jumps and counts suspended time (on macOS: where the system offers it).
boot_time: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Mark(IntEnum):
    """What has become of one message of a lease."""

    UNSTARTED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    GONE = 4  # given up: dropped, released or settled by the supervisor


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


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A copy of one lease slot, as the supervisor reads it."""

    slot: int
    state: LeaseState
    lease_id: str
    queue: int
    count: int
    visibility_s: float
    deadline: float
    marks: bytes


@dataclass(frozen=True, slots=True)
class RunningView:
    """A copy of one running slot: a message in a handler since `started`, until `limit` (0: no limit)."""

    lease: int
    place: int
    task: int
    started: float
    limit: float


class Board:
    """One child's board. `slots` handlers may run at a time; there are some more lease slots than that."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self.leases = slots + 32
        self._lease_at = _HEADER_BYTES
        self._running_at = self._lease_at + self.leases * _LEASE_BYTES
        self._running_word = self._running_at // 8
        self._task_at = self._running_at + slots * _RUNNING_BYTES
        size = self._task_at + MAX_TASKS * _TASK_WORDS * 8
        # A sparse file: pages that nobody touches cost nothing.
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        self._map = mmap.mmap(descriptor, size)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")
        self.floats = self.bytes.cast("d")

    @classmethod
    def create(cls, slots: int) -> Board:
        """Make a board that children may inherit by its descriptor."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("qworker-board"), slots)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), slots)

    def close(self) -> None:
        """Unmap the board and close its descriptor."""
        for view in (self.floats, self.words, self.bytes):
            view.release()
        self._map.close()
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
        """How far the child is."""
        return ChildState(self.words[1])

    @state.setter
    def state(self, state: ChildState) -> None:
        self.words[1] = state

    @property
    def handled(self) -> int:
        """Messages whose handler has ended."""
        return self.words[2]

    @handled.setter
    def handled(self, number: int) -> None:
        self.words[2] = number

    @property
    def failed(self) -> int:
        """Messages whose handler has failed."""
        return self.words[3]

    @failed.setter
    def failed(self, number: int) -> None:
        self.words[3] = number

    @property
    def stale(self) -> int:
        """Outcomes that came too late."""
        return self.words[4]

    @stale.setter
    def stale(self, number: int) -> None:
        self.words[4] = number

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

    # -- leases --------------------------------------------------------------------------------

    def lease_base(self, slot: int) -> int:
        """Where a lease slot begins, in bytes."""
        return self._lease_at + slot * _LEASE_BYTES

    def enter_lease(self, slot: int, lease_id: str, queue: int, visibility_s: float) -> None:
        """Note a lease before the call that may create it."""
        base = self.lease_base(slot)
        name = lease_id.encode()
        self.bytes[base + 1] = 0
        self.bytes[base + 2 : base + 2 + len(name) + 1] = name + b"\0"
        word = (base + 80) // 8
        self.words[word] = queue
        self.words[word + 1] = 0
        self.floats[word + 2] = visibility_s
        self.floats[word + 3] = boot_time() + visibility_s
        self.bytes[base + _LEASE_HEAD_BYTES : base + _LEASE_BYTES] = bytes(1024)
        # Last: from here on the supervisor minds the slot.
        self.bytes[base] = LeaseState.PENDING

    def hold_lease(self, slot: int, count: int, deadline: float) -> None:
        """Note that the lease exists and holds `count` messages."""
        base = self.lease_base(slot)
        word = (base + 80) // 8
        self.words[word + 1] = count
        self.floats[word + 3] = deadline
        self.bytes[base] = LeaseState.HELD

    def free_lease(self, slot: int) -> None:
        """Note that nothing of the lease is left."""
        self.bytes[self.lease_base(slot)] = LeaseState.FREE

    def marks_at(self, slot: int) -> int:
        """Where the marks of a lease begin in `bytes`."""
        return self.lease_base(slot) + _LEASE_HEAD_BYTES

    def recalled(self, slot: int) -> bool:
        """Whether the supervisor has taken back what has not started."""
        return self.bytes[self.lease_base(slot) + 1] != 0

    def recall(self, slot: int) -> None:
        """Take back what has not started; read the marks 10 ms later."""
        self.bytes[self.lease_base(slot) + 1] |= 1

    def lose(self, slot: int) -> None:
        """Say that the lease has run out: what has not started is not to, and async handlers are cancelled."""
        self.bytes[self.lease_base(slot) + 1] = 3

    def lost(self, slot: int) -> bool:
        """Whether the lease has run out."""
        return self.bytes[self.lease_base(slot) + 1] == 3

    def set_visibility(self, slot: int, visibility_s: float) -> None:
        """Note how long an extension of the lease reaches."""
        self.floats[(self.lease_base(slot) + 80) // 8 + 2] = visibility_s

    def set_deadline(self, slot: int, deadline: float) -> None:
        """Note an extension."""
        self.floats[self.deadline_at(slot)] = deadline

    def mark(self, slot: int, place: int, mark: Mark) -> None:
        """Set the mark of one message."""
        self.bytes[self.marks_at(slot) + place] = mark

    def deadline_at(self, slot: int) -> int:
        """Where the deadline of a lease stands in `floats`."""
        return (self.lease_base(slot) + 80) // 8 + 3

    def lease(self, slot: int) -> LeaseView | None:
        """Copy a lease slot; None where it is free."""
        base = self.lease_base(slot)
        state = self.bytes[base]
        if state == LeaseState.FREE:
            return None
        word = (base + 80) // 8
        name = bytes(self.bytes[base + 2 : base + 80]).partition(b"\0")[0]
        count = self.words[word + 1]
        marks_at = base + _LEASE_HEAD_BYTES
        return LeaseView(
            slot,
            LeaseState(state),
            name.decode("ascii", "replace"),
            self.words[word],
            count,
            self.floats[word + 2],
            self.floats[word + 3],
            bytes(self.bytes[marks_at : marks_at + count]),
        )

    def held_leases(self) -> list[LeaseView]:
        """Copy every lease slot that is not free."""
        views = (self.lease(slot) for slot in range(self.leases))
        return [view for view in views if view is not None]

    # -- running handlers ----------------------------------------------------------------------

    def running_at(self, slot: int) -> int:
        """Where a running slot begins, in words: lease and place + 1 (0: nothing runs), task, start, limit."""
        return self._running_word + slot * _RUNNING_WORDS

    def begin(self, slot: int, lease: int, place: int, task: int, now: float, limit: float) -> None:
        """Note that a handler begins; `limit` is when it must have ended, 0 for never."""
        at = self._running_word + slot * _RUNNING_WORDS
        words, floats = self.words, self.floats
        words[at + 1] = task
        floats[at + 2] = now
        floats[at + 3] = limit
        words[at] = (lease << 16) + place + 1

    def end(self, slot: int) -> None:
        """Note that the handler of a slot has ended."""
        self.words[self._running_word + slot * _RUNNING_WORDS] = 0

    def running(self) -> list[RunningView]:
        """Copy the slots in which a handler runs."""
        found = []
        for slot in range(self.slots):
            at = self.running_at(slot)
            packed = self.words[at]
            if packed:
                found.append(
                    RunningView(
                        packed >> 16,
                        (packed & 0xFFFF) - 1,
                        self.words[at + 1],
                        self.floats[at + 2],
                        self.floats[at + 3],
                    )
                )
        return found

    # -- metrics of tasks ----------------------------------------------------------------------

    def task_at(self, task: int) -> int:
        """Where the counters of a task begin, in words."""
        return self._task_at // 8 + min(task, MAX_TASKS - 1) * _TASK_WORDS

    def add(
        self,
        task: int,
        outcomes: list[int],
        run: tuple[list[int], float],
        wait: tuple[list[int], float],
    ) -> None:
        """Add a batch's counts to a task: outcomes, and (buckets, sum in seconds) of run and wait times."""
        at = self.task_at(task)
        words, floats = self.words, self.floats
        for number, amount in enumerate(outcomes):
            if amount:
                words[at + number] += amount
        for start, (buckets, total_s) in ((at + _RUN_AT, run), (at + _WAIT_AT, wait)):
            for number, amount in enumerate(buckets):
                if amount:
                    words[start + number] += amount
            floats[start + _BUCKETS] += total_s

    def counts(
        self, task: int
    ) -> tuple[list[int], tuple[list[int], float], tuple[list[int], float]]:
        """Read what `add` has added up: outcomes, run and wait histograms."""
        at = self.task_at(task)
        run, wait = at + _RUN_AT, at + _WAIT_AT
        return (
            list(self.words[at : at + len(OUTCOMES)]),
            (list(self.words[run : run + _BUCKETS]), self.floats[run + _BUCKETS]),
            (list(self.words[wait : wait + _BUCKETS]), self.floats[wait + _BUCKETS]),
        )
