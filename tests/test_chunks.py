"""Chunks: what one call takes, by number and by bytes."""

from __future__ import annotations

from qworker.chunks import chunks
from tests.tables import each


@each(
    "sizes, most, expected",
    [
        ([], None, []),
        ([4, 6, 1], None, [[4, 6], [1]]),
        ([11, 1, 11], None, [[11], [1], [11]]),
        ([1, 1, 1, 1], 3, [[1, 1, 1], [1]]),
        ([5, 5, 5], 1, [[5], [5], [5]]),
    ],
)
def test_a_chunk_has_at_most_so_many_items_and_bytes(sizes, most, expected):
    """Ten bytes here; an item that is larger is alone, and none is left out."""
    assert [*chunks(sizes, int, most_bytes=10, most=most)] == expected
