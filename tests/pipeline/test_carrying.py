"""What an increment keeps of holes and offsets, without Spark."""

from __future__ import annotations

from qworker.pipeline.jobs.carrying import last_holes
from qworker.pipeline.jobs.holes import Hole
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import ends_of
from qworker.pipeline.source.offsets import read
from tests.pipeline.forging import EPOCH, Journal, at, store


def hole(after: int, until: float | None, *, queue: str = "q", why: str = "trimmed") -> Hole:
    return Hole(queue, 0, EPOCH, after, 3, at(0), None if until is None else at(until), why)


def test_a_hole_without_an_end_is_kept_as_one_that_ends_with_the_audit():
    """What ended in it may be sent before the next audit."""
    kept = last_holes([hole(5, None), hole(9, 100, queue="other")], at(700))
    assert [(each.queue, each.after, each.until) for each in kept] == [
        ("q", 5, at(700)),
        ("other", 9, at(100)),
    ]


def test_a_hole_that_is_found_again_ends_with_the_later_one():
    """In either order; what is in the record is not kept."""
    for some in ([hole(5, None), hole(5, 100)], [hole(5, 100), hole(5, None)]):
        (kept,) = last_holes([*some, hole(8, 900, why="used twice")], at(700))
        assert (kept.after, kept.until) == (5, at(700))


def test_of_many_holes_the_last_hundred_are_kept_and_the_latest_time():
    holes = [hole(number, 1000 - number) for number in range(150)]
    kept = last_holes(holes, at(5000))
    assert [each.after for each in kept] == [*range(50, 150)]
    assert kept[-1].until == at(1000)
    assert kept[-2].until == at(1000 - 148)


def test_an_archive_ends_where_its_newest_offsets_say(tmp_path):
    """Those of the version that is read."""
    lake, journal = Lake(tmp_path / "lake"), Journal()
    marks = []
    for number in range(3):
        journal.write(f"m{number}", f"sent@{number}")
        end = {"emails": {"epoch": EPOCH, "entry": number + 1, "event": number + 1}}
        store(lake, Journal(rows=journal.rows[number:]), offsets=end)
        marks.append((lake.pinned(), end))
    assert ends_of(lake) == read(marks[-1][1])
    for version, end in marks:
        assert ends_of(version) == read(end)
