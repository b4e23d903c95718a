"""The slots of a worker: which children follow which, and when a burst has nothing left to do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.consumer.supervisor.processes.pool import ChildPool
from qworker.consumer.supervisor.processes.restart import SHORT_LIFE_S, ChildSlot
from qworker.consumer.supervisor.processes.totals import Totals


def ended(*, starting: bool = False, handled: int = 0, lived_s: float = 0.0) -> Any:
    """A child that has ended."""
    board = SimpleNamespace(handled=handled)
    return SimpleNamespace(board=board, starting=starting, started=time.monotonic() - lived_s)


@pytest.fixture
def pool() -> ChildPool:
    """The pool of a worker with one slot."""
    return ChildPool(SimpleNamespace(processes=1), Totals())  # type: ignore[arg-type]


def test_only_failed_starts_in_a_row_count(pool: ChildPool) -> None:
    """A burst gives up after three of them; a child that has imported the app begins the series anew."""
    slot, counted = ChildSlot(), []
    for child in (*[ended(starting=True)] * 2, ended(), ended(starting=True)):
        pool.replace(child, slot, "crashed", running=0)
        counted.append(slot.failed_starts)
    assert counted == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("handled", "lived_s", "running", "pauses"),
    [(0, 0.0, 0, True), (0, 0.0, 1, False), (1, 0.0, 0, False), (0, SHORT_LIFE_S, 0, False)],
    ids=["did nothing", "died in its first handler", "had handled one", "lived for long"],
)
def test_a_child_that_has_worked_is_followed_at_once(
    pool: ChildPool, handled: int, lived_s: float, running: int, pauses: bool
) -> None:
    """A message that kills its worker must not hold up the others."""
    slot = ChildSlot()
    pool.replace(ended(handled=handled, lived_s=lived_s), slot, "crashed", running=running)
    assert slot.is_due(time.monotonic()) is not pauses


class Counting:
    """A board whose child begins and ends its quiet times between two looks at it."""

    def __init__(self, looks: Iterable[int]) -> None:
        self._looks = iter(looks)

    @property
    def quiet(self) -> int:
        return next(self._looks)


@pytest.mark.parametrize(
    ("first", "second", "quiet"),
    [([1, 1], [3, 3], True), ([1, 3], [3, 3], False), ([1, 1], [2, 2], False)],
    ids=["both", "one worked between the looks", "one works"],
)
def test_a_burst_is_over_at_a_moment_at_which_all_are_quiet(
    pool: ChildPool, first: list[int], second: list[int], quiet: bool
) -> None:
    """Each may have been quiet when it was looked at, while the other one sent it work."""
    for looks in (first, second):
        child: Any = SimpleNamespace(board=Counting(looks))
        pool._totals.add(child)
    assert pool.is_quiet() is quiet
