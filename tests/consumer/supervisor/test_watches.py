"""What the supervisor sees of a child that says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import ChildState
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.watches import Watch

WATCHDOG_S = 60.0


@dataclass
class Silent:
    """A child that has not spoken to the server for two minutes."""

    board: Board
    pid: int = 1
    starting: bool = False

    def silent_s(self, watch: Watch, answering_since: float | None = 0.0) -> float:
        return watch.silent_s(self, answering_since)  # type: ignore[arg-type]


@pytest.fixture
def child() -> Iterator[Silent]:
    """Its board says that it receives, and that nothing runs."""
    board = Board.create(1)
    board.state = ChildState.READY
    board.beat = boot_time() - 2 * WATCHDOG_S
    yield Silent(board)
    board.close()


@pytest.fixture
def watch() -> Watch:
    """It calls 60 s of silence too long."""
    return Watch(RunOptions())


@pytest.mark.parametrize("state", [ChildState.READY, ChildState.STOPPING, ChildState.RECYCLED])
def test_a_child_that_says_nothing_has_stalled(
    child: Silent, watch: Watch, state: ChildState
) -> None:
    """Silence beside a server that answers is reported with its length, also for a child that never ends."""
    child.board.state = state
    assert 2 * WATCHDOG_S <= child.silent_s(watch) < 3 * WATCHDOG_S


def test_silence_has_other_reasons(child: Silent, watch: Watch) -> None:
    """A child that imports its app, a server that is away or has just come back, a watchdog that is off."""
    assert child.silent_s(watch, None) == 0.0
    assert child.silent_s(watch, boot_time() - 1.0) == 0.0
    assert child.silent_s(Watch(RunOptions(watchdog=0))) == 0.0
    child.starting = True
    assert child.silent_s(watch) == 0.0


def test_a_long_handler_does_not_count_as_silence_nor_the_moment_after_it(
    child: Silent, watch: Watch
) -> None:
    """A handler holds its child up; when it ends, the child has not had the time to say so."""
    child.board.running.begin(0, 0, 0, 0, child.board.beat, 0.0)
    assert child.silent_s(watch) == 0.0
    child.board.running.end(0)
    assert child.silent_s(watch) == 0.0
    # A process that gets the same pid is another child.
    watch.forget(child)  # type: ignore[arg-type]
    assert child.silent_s(watch) > WATCHDOG_S


class Aged(Board):
    """A board on which everything has happened some seconds earlier than it did."""

    def held(self, slot: int, ago_s: float, *, pending: bool = False) -> None:
        """Enter a lease of five messages."""
        self.leases.enter(slot, f"L{slot}", 0, 30.0)
        if not pending:
            self.leases.hold(slot, 5, boot_time() + 30.0, 30.0)
        # The word behind the deadline, see board/leases.py.
        self.floats[self.leases.deadline_at(slot) + 1] = boot_time() - ago_s


@pytest.mark.parametrize(
    ("lease_s", "handler_s", "pending", "beside_idle", "stuck"),
    [
        # Behind a handler that is slower than a batch is meant to be.
        (0.5, 0.4, False, False, False),
        (1.5, 1.4, False, False, True),
        (0.5, 0.4, False, True, True),
        (0.05, 0.04, False, True, False),
        (1.5, 0.05, False, True, True),
        # The child has not read the reply: what it asked for is held up as well.
        (1.5, 1.4, True, False, True),
        (1.5, 0.5, True, False, False),
        (0.5, 0.4, True, False, False),
        (0.5, 0.4, True, True, True),
        # A handler began before it was asked for: its reply may be on the way.
        (0.5, 0.7, True, True, False),
        (1.5, 1.7, True, True, True),
        # Nothing runs: it waits for a message.
        (1.5, None, True, True, False),
    ],
)
def test_what_waits_behind_a_slow_handler_is_found(
    watch: Watch,
    lease_s: float,
    handler_s: float | None,
    pending: bool,
    beside_idle: bool,
    stuck: bool,
) -> None:
    """After a second; after a tenth of one where another child has nothing to do."""
    board = Aged.create(2)
    child = SimpleNamespace(board=board, max_waits_s=(0.0,))
    board.held(0, lease_s, pending=pending)
    if handler_s is not None:
        board.running.begin(0, 1, 0, 0, boot_time() - handler_s, 0.0)
    leases = watch.stuck_leases(child, beside_idle=beside_idle)  # type: ignore[arg-type]
    assert [lease.slot for lease in leases] == ([0] if stuck else [])
    board.leases.recall(0)
    assert watch.stuck_leases(child, beside_idle=beside_idle) == []  # type: ignore[arg-type]
    board.close()


def test_a_child_is_too_large_above_its_limit(child: Silent) -> None:
    """The size is reported, and read every two seconds at most; a process that is gone has none."""
    child.pid = os.getpid()
    watch = Watch(RunOptions(max_rss="32MiB"))
    size = watch.is_too_large(child)  # type: ignore[arg-type]
    assert size > 32 * 2**20
    assert watch.is_too_large(child) == 0  # type: ignore[arg-type]
    child.pid = 2**22 + 1
    assert watch.is_too_large(child) == 0  # type: ignore[arg-type]
