"""`--each`: rows are played until enough flows of every kind have ended, and no longer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.consumer.forkserver import can_fork
from verification.faults.history import History, events_of
from verification.faults.load import Load
from verification.faults.playing import Played, asking, play
from verification.faults.repeating import FLOWS, flows_of, until_each
from verification.faults.row import Row
from verification.faults.rows import ROWS
from verification.faults.server import FaultServer
from verification.faults.stage import Stage

CHAINS, CROWDS = ROWS["C1"], ROWS["C1m"]


def ended(row: Row, number: int) -> Played:
    """What a play came to in which so many flows of each kind ended."""
    return Played(row, 1, figures=dict.fromkeys(FLOWS, float(number)))


def test_rows_share_what_is_missing_and_are_played_again() -> None:
    """Two rows, of which one brings all it is asked for and the other half: 100, then the 25 that are missing."""
    asked: list[tuple[str, int]] = []

    def brings(row: Row, flows: int) -> Played:
        asked.append((row.name, flows))
        return ended(row, flows if row is CHAINS else flows // 2)

    played = list(until_each([CHAINS, ROWS["C2"]], 100, brings))
    assert asked[:4] == [("C1", 50), ("C2", 50), ("C1", 13), ("C2", 13)]
    assert min(flows_of(played[:-1]).values()) < 100 <= min(flows_of(played).values())


def test_rows_without_flows_of_every_kind_are_played_once() -> None:
    """A crowd has groups alone; it is played, and not asked for a share."""
    asked: list[tuple[str, int]] = []

    def brings(row: Row, flows: int) -> Played:
        asked.append((row.name, flows))
        return ended(row, min(flows, 6))

    list(until_each([CHAINS, CROWDS], 12, brings))
    assert asked == [("C1", 12), ("C1m", 0), ("C1", 6)]


def test_a_row_of_ordered_groups_is_held_to_the_number_of_messages() -> None:
    """A hundred messages go to each group in turn; the row is played once, and fails with a message less."""
    asked: list[tuple[str, int]] = []

    def brings(row: Row, flows: int) -> Played:
        asked.append((row.name, flows))
        return Played(row, 1)

    list(until_each([ROWS["G73"]], 100_000, brings))
    assert asked == [("G73", 100_000)]

    held = asking(ROWS["G73"], 100_000)
    figures = {"kills": 2, "members": 100_000, "ordered_groups": 1000, "disordered": 0}
    assert all(bound.holds(figures) for bound in held.bounds)
    for short in ({"members": 99_999}, {"ordered_groups": 999}):
        assert not all(bound.holds(figures | short) for bound in held.bounds)
    assert asking(ROWS["G73"], 0) is ROWS["G73"]


def test_rows_of_killed_children_last_until_so_many_are_killed(tmp_path: Path) -> None:
    """Each is held to the number; its load goes on for it, however long its own time is."""
    for name in ("G70", "G72"):
        held = asking(ROWS[name], 500)
        assert any(not bound.holds({"kills": 499}) for bound in held.bounds if bound.limit == 500)
    alone, chance = Load(producers=0, workers=0, daemons=0), random.Random(1)
    with FaultServer() as server:
        stage = Stage(server, tmp_path, alone, seconds=0, chance=chance, flows=3, each="kills")
        stage.begin()
        for _ in stage.goes_on(0.001):
            stage.add("kills", 1)
    assert stage.measured["kills"] == 3


def test_a_pass_that_brings_nothing_is_the_last() -> None:
    """Rows that cannot be played here do not go on for ever."""
    played = list(until_each([CHAINS], 5, lambda row, flows: ended(row, 0)))
    assert len(played) == 1


def test_without_a_number_each_row_is_played_once() -> None:
    """As for every run of all rows."""
    played = list(until_each([CHAINS, CROWDS], 0, lambda row, flows: ended(row, 3)))
    assert [each.row for each in played] == [CHAINS, CROWDS]


def test_notes_of_one_call_are_lines_of_one_word(tmp_path: Path) -> None:
    """They are read as if each had been written by itself."""
    history = History(str(tmp_path))
    history.note_all("sent", [("p0/1", 1, 1), ("p0/2", 1, 1)], synced=True)
    history.note("done", "p0/1-1")
    assert [(event.word, event.rest, event.pid) for event in events_of(tmp_path)] == [
        ("sent", ("p0/1", "1", "1"), os.getpid()),
        ("sent", ("p0/2", "1", "1"), os.getpid()),
        ("done", ("p0/1-1",), os.getpid()),
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.nightly("test_rows_share_what_is_missing_and_are_played_again")
def test_a_row_of_flows_lasts_until_its_share_has_ended() -> None:
    """Its own time is a moment; the flows of each kind that it was asked for have ended."""
    played = play(CHAINS, seed=1, seconds=0.1, patience=20, small=True, flows=4, warm=can_fork())
    assert played.problems == []
    assert min(flows_of([played]).values()) >= 4
