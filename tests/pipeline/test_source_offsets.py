"""Places in journals: their JSON, and how a limit is divided."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import InvalidOptionError
from qworker.pipeline.source.offsets import Position, dump, parse, read, shares
from tests.tables import each


def test_offsets_survive_json_and_are_always_the_same_text():
    positions = {"b": Position(7, 0, 0), "a": Position(5, 41, 4100), "c": Position(9, 3)}
    text = json.dumps(dump(positions))
    assert text == (
        '{"a": {"epoch": 5, "entry": 41, "event": 4100}, "b": {"epoch": 7, "entry": 0, "event": 0}, '
        '"c": {"epoch": 9, "entry": 3}}'
    )
    assert parse(text, "startingOffsets") == positions
    assert read(json.loads(text)) == positions


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_two_words_stand_for_places(word):
    assert parse(word, "startingOffsets") == word


@each(
    "text, problem",
    [
        ("last", 'startingOffsets: \'last\' is not an offset; write "earliest", "latest" or {'),
        ("[1]", "startingOffsets: are not an object"),
        ('{"a": 5}', "startingOffsets.a: has no epoch and entry"),
        ('{"a": {"epoch": 5}}', "startingOffsets.a: has no epoch and entry"),
        ('{"a": {"epoch": 5, "entry": 1, "e": 1}}', "startingOffsets.a.e: is unknown"),
        ('{"a": {"epoch": 5, "entry": -1}}', "startingOffsets.a.entry: -1 is not accepted; 0 to"),
        ('{"a": {"epoch": true, "entry": 1}}', "startingOffsets.a.epoch: True is not accepted"),
        ('{"A B": {"epoch": 5, "entry": 1}}', "startingOffsets.A B: 'A B' is not a valid name"),
    ],
)
def test_wrong_offsets_are_refused_by_name(text, problem):
    with pytest.raises(InvalidOptionError) as caught:
        parse(text, "startingOffsets")
    assert str(caught.value).startswith(problem)


def test_a_limit_is_divided_in_proportion():
    assert shares([100, 300, 0], 40) == [10, 30, 0]
    assert shares([100, 300], 400) == [100, 300]
    assert shares([5, 1_000_000], 100) == [1, 99]


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 10**6))
def test_shares_add_up_and_leave_no_queue_out(backlogs, limit):
    parts = shares(backlogs, limit)
    assert all(0 <= part <= backlog for part, backlog in zip(parts, backlogs, strict=True))
    assert all(part > 0 for part, backlog in zip(parts, backlogs, strict=True) if backlog)
    expected = min(limit, sum(backlogs))
    assert expected <= sum(parts) <= expected + len(backlogs)
