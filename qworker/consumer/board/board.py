"""The board: shared memory in which a child records its work for its supervisor.

A child may die at any instruction, and a handler may hold the GIL for an hour; the supervisor still has to know which
messages run, which wait and which are done. So the child writes marks into memory that outlives it. Each value has one
writer (named below) and is one aligned word or byte, so no lock is needed:

    header    beat, state, counts, quiet              child (counts: tally.py);  stop, peers, over: supervisor
    leases    id, queue, count, deadline, marks       child;  recall, and the deadline once it is held: supervisor
    running   lease, position, start, limit           child, one slot per handler that may run at a time
    counters  outcomes and histograms per task        child
    orders    paused tasks, cancelled messages        supervisor
    doubts    leases whose receive lost its reply     child
    acked     messages that were acked before start child

Two rules make a recall (the supervisor takes back unstarted messages) safe without a lock: the child marks a message
RUNNING and *then* reads `recall`; the supervisor sets `recall`, waits, and *then* reads the marks. One of the two
always sees the other.

A handler can write anywhere, here as well. Values that no child writes are skipped by readers, which note the board as
`spoiled`: a lease that cannot be read runs out, and those of other children are kept.

The file is longer than the board: a crashing child writes its stack behind it, see crash.py.
Times are seconds of `boot_time()`, a clock that also counts while the machine is suspended.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

from qworker.consumer.board.acked import ACKED_BYTES, AckedMessages
from qworker.consumer.board.counters import COUNTERS_BYTES, TaskCounters
from qworker.consumer.board.doubts import DOUBTS_BYTES, Doubts
from qworker.consumer.board.leases import LEASE_BYTES, LeaseSlots
from qworker.consumer.board.orders import ORDERS_BYTES, Orders
from qworker.consumer.board.running import RUNNING_WORDS, RunningSlots
from qworker.consumer.board.states import ChildState
from qworker.consumer.board.tally import FAILED, HANDLED, Tally

__all__ = ["Board", "memory_file"]

_HEADER_BYTES: Final = 256


def memory_file(name: str) -> int:
    """Open a file without a name in the file system, which children inherit by its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

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
    """One child's board. `slots` handlers may run at a time; there are 32 more lease slots than that."""

    #: Messages whose handler has ended, how many of them failed, and outcomes that came too late.
    handled = _Word(HANDLED)
    failed = _Word(FAILED)
    stale = _Word(4)
    #: The native id of the thread that may be sent `stacks.STACK_SIGNAL`; 0 while none may.
    stacks_thread = _Word(7)
    #: In a burst: how often the child has found nothing to do, or something again; odd while it has nothing.
    quiet = _Word(28)
    #: Not 0 once no child of a burst has anything to do.
    over = _Word(29)

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        leases = slots + 32
        running_at = _HEADER_BYTES + leases * LEASE_BYTES
        counters_at = running_at + slots * RUNNING_WORDS * 8
        orders_at = counters_at + COUNTERS_BYTES
        doubts_at = orders_at + ORDERS_BYTES
        acked_at = doubts_at + DOUBTS_BYTES
        self.size = acked_at + leases * ACKED_BYTES
        # A sparse file: unused pages cost nothing.
        if os.fstat(descriptor).st_size < self.size:
            os.ftruncate(descriptor, self.size)
        self._map = mmap.mmap(descriptor, self.size)
        self.bytes = memory = memoryview(self._map)
        self.words = words = memory.cast("Q")
        self.floats = floats = memory.cast("d")
        self.leases = LeaseSlots(memory, words, floats, _HEADER_BYTES, leases)
        self.running = RunningSlots(words, floats, running_at // 8, slots, leases=leases)
        self.counters = TaskCounters(words, floats, counters_at // 8)
        self.orders = Orders(words, floats, orders_at)
        self.doubts = Doubts(memory, words, doubts_at)
        self.acked = AckedMessages(memory, acked_at)
        self.tally = Tally(memory, words, self.leases, self.counters, counters_at // 8)
        self._header_spoiled = False

    @classmethod
    def create(cls, slots: int) -> Board:
        """Make a board that children inherit by its descriptor."""
        return cls(memory_file("qworker-board"), slots)

    def close(self) -> None:
        """Close the descriptor. The memory stays for present readers, and goes with the board."""
        os.close(self.descriptor)

    @property
    def spoiled(self) -> bool:
        """Whether a value was read that no child writes."""
        return self._header_spoiled or self.leases.spoiled or self.running.spoiled

    @property
    def beat(self) -> float:
        """When the server last answered the child."""
        return self.floats[0]

    @beat.setter
    def beat(self, at: float) -> None:
        self.floats[0] = at

    @property
    def state(self) -> ChildState:
        """The state of the child; READY if that cannot be read, so that its end counts as a crash."""
        number = self.words[1]
        if number > ChildState.RECYCLED:
            self._header_spoiled = True
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
