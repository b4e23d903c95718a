"""What a supervisor adds up of its children: living ones and ended ones."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.manifest import slots_for
from qworker.consumer.supervisor.processes.totals import REASONS, Totals


@pytest.fixture
def children() -> Iterator[list[Any]]:
    """Two children with boards of their own."""
    made = [SimpleNamespace(board=Board.create(slots_for(1)), tasks=[]) for _ in range(2)]
    yield made
    for child in made:
        child.board.close()


def test_totals_never_fall_when_a_child_ends(children: list[Any]) -> None:
    """What it has counted stays: also outcomes that came too late, which are no task's."""
    totals = Totals()
    for number, child in enumerate(children, 1):
        totals.add(child)
        child.board.handled, child.board.failed, child.board.stale = 10 * number, number, 3 * number
    assert (totals.handled, totals.failed, totals.stale) == (30, 3, 9)
    for child in children:
        totals.note_exit(child, "crashed")
        assert (totals.handled, totals.failed, totals.stale) == (30, 3, 9)
    assert totals.children == []
    assert totals.exits == {**dict.fromkeys(REASONS, 0), "crashed": 2}
