"""Arrow batches, split by queue and priority, with the delay, TTL and id of each row; errors name the row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from qworker.bulk.options import BulkOptions
from qworker.bulk.rows import RowGroup, RowReader
from qworker.errors import InvalidBodyError, InvalidOptionError
from tests.tables import each


def read(*batches: dict[str, Any], partition: int = 3, priority: int = 0) -> list[RowGroup]:
    """Read batches given as columns."""
    reader = RowReader(BulkOptions(queue="q", priority=priority), partition)
    return [
        group
        for columns in batches
        for group in reader.read(
            pa.record_batch({name: pa.array(values) for name, values in columns.items()})
        )
    ]


def test_plain_rows_are_one_group() -> None:
    """Without other columns a batch is a group for the queue of the options, its rows numbered through."""
    groups = read({"body": ["a", "bcd"]}, {"body": [b"e"]}, priority=4)
    assert groups == [
        RowGroup("q", 4, [b"a", b"bcd"], [], range(1, 3), 3),
        RowGroup("q", 4, [b"e"], [], range(3, 4), 1),
    ]


def test_empty_batch_is_not_a_group() -> None:
    """A batch without rows gives nothing."""
    assert read({"body": pa.array([], pa.string())}) == []


def test_bodies_are_bytes_of_any_kind() -> None:
    """Text becomes UTF-8, binary stays as it is; also in the large types of Arrow."""
    for kind in (pa.string(), pa.large_string()):
        assert read({"body": pa.array(["é"], kind)})[0].bodies == ["é".encode()]
    for kind in (pa.binary(), pa.large_binary()):
        assert read({"body": pa.array([b"\xff"], kind)})[0].bodies == [b"\xff"]


def test_rows_go_by_queue_and_priority() -> None:
    """Rows of one queue and priority stay in their order; a null takes the option."""
    groups = read(
        {
            "body": ["1", "2", "3", "4", "5"],
            "queue": ["a", "b", "a", None, "a"],
            "priority": pa.array([0, 0, 9, None, 0], pa.int32()),
        },
        priority=2,
    )
    assert [
        (group.queue, group.priority, group.bodies, list(group.numbers)) for group in groups
    ] == [
        ("a", 0, [b"1", b"5"], [1, 5]),
        ("b", 0, [b"2"], [2]),
        ("a", 9, [b"3"], [3]),
        ("q", 2, [b"4"], [4]),
    ]


def test_words_are_delay_ttl_and_id() -> None:
    """Numbers are ms, text is a duration, null is what the write says; they follow their rows into the groups."""
    groups = read(
        {
            "body": ["1", "2", "3"],
            "queue": ["a", "b", "a"],
            "delay": ["10s", None, "0s"],
            "ttl": [5, None, 0],
            "id": [7, 8, 9],
        }
    )
    assert [group.words for group in groups] == [
        [10_000, 5, "7", 0, 0, "9"],
        ["", "", "8"],
    ]


@each(
    "columns, text",
    [
        ({"body": ["a", None]}, "partition 3, row 3: the body is null; a message has a body"),
        ({"body": ["a"], "id": [None]}, "partition 3, row 2: the id is null"),
        ({"body": ["a"], "id": ["é" * 129]}, "partition 3, row 2: the id is empty or too long"),
        ({"body": ["a"], "queue": ["A"]}, "partition 3, row 2: queue: 'A' is not a valid name"),
        ({"body": ["a"], "priority": [10]}, "partition 3, row 2: priority 10 is out of range"),
        ({"body": ["a"], "delay": ["soon"]}, "partition 3, row 2: delay 'soon' is not a duration"),
        ({"body": ["a"], "ttl": [-1]}, "partition 3, row 2: ttl -1 is out of range"),
    ],
)
def test_bad_row_is_named(columns: dict[str, Any], text: str) -> None:
    """An error says in which partition and row it is."""
    with pytest.raises((InvalidBodyError, InvalidOptionError)) as caught:
        read({"body": ["first"]}, columns)
    assert text in str(caught.value)


def test_row_without_a_queue_is_named() -> None:
    """If neither row nor option names a queue, the error names the row."""
    reader = RowReader(BulkOptions(), 0)
    batch = pa.record_batch({"body": ["a", "b"], "queue": ["a", None]})
    with pytest.raises(InvalidOptionError, match="partition 0, row 2: the queue is null"):
        list(reader.read(batch))
