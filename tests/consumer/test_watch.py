"""What the supervisor sees of a child that says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from qworker.consumer.board import Board, ChildState, boot_time
from qworker.consumer.options import RunOptions
from qworker.consumer.watch import Watch

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
    """Silence beside a server that answers is told with its length, also of a child that does not come to its end."""
    child.board.state = state
    assert 2 * WATCHDOG_S <= child.silent_s(watch) < 3 * WATCHDOG_S


def test_silence_has_other_reasons(child: Silent, watch: Watch) -> None:
    """A child that imports its app, a server that is away or has just come back, a watchdog that is off."""
    assert child.silent_s(watch, None) == 0.0
    assert child.silent_s(watch, boot_time() - 1.0) == 0.0
    assert child.silent_s(Watch(RunOptions(watchdog=0))) == 0.0
    child.starting = True
    assert child.silent_s(watch) == 0.0


def test_a_long_handler_is_no_silence_and_neither_is_the_moment_after_it(
    child: Silent, watch: Watch
) -> None:
    """A handler holds its child up; when it ends, the child has not had the time to say so."""
    child.board.begin(0, 0, 0, 0, child.board.beat, 0.0)
    assert child.silent_s(watch) == 0.0
    child.board.end(0)
    assert child.silent_s(watch) == 0.0
    # A process that gets the same pid is another child.
    watch.forget(child)  # type: ignore[arg-type]
    assert child.silent_s(watch) > WATCHDOG_S


def test_a_child_is_too_large_above_its_limit(child: Silent) -> None:
    """The size is told, and looked at every two seconds at most; a process that is gone has none."""
    child.pid = os.getpid()
    watch = Watch(RunOptions(max_rss="32MiB"))
    size = watch.is_too_large(child)  # type: ignore[arg-type]
    assert size > 32 * 2**20
    assert watch.is_too_large(child) == 0  # type: ignore[arg-type]
    child.pid = 2**22 + 1
    assert watch.is_too_large(child) == 0  # type: ignore[arg-type]
