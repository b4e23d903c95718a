"""Streams of rows: cut into chunks by the rows alone, and what was taken is left out."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from qworker.bulk.ledger import MAX_BYTES, MAX_ROWS, LedgerPosition, Stream
from qworker.engine.send_chunk import Chunk
from qworker.errors import BulkChangedError
from tests.tables import each


def cut(
    bodies: list[bytes],
    *,
    batch: int = 10_000,
    taken: LedgerPosition | None = None,
    name: str = "0.0",
) -> tuple[list[Chunk], Stream]:
    """Cut bodies that come in batches of a size."""
    stream = Stream("w", name, taken or LedgerPosition())
    chunks = []
    for first in range(0, len(bodies), batch):
        chunks += stream.add(bodies[first : first + batch])
    chunks += stream.flush()
    stream.check_end()
    return chunks, stream


BODIES = [b"%d" % row for row in range(2500)]


def test_chunks_have_a_thousand_rows_and_follow_each_other() -> None:
    """Every chunk begins where the one before ended, with the same CRC."""
    chunks, stream = cut(BODIES)
    assert [len(chunk.bodies) for chunk in chunks] == [1000, 1000, 500]
    assert [chunk.first for chunk in chunks] == [0, 1000, 2000]
    assert chunks[0].crc_before == 0
    assert all(a.crc_after == b.crc_before for a, b in pairwise(chunks))
    assert stream.position == LedgerPosition(2500, chunks[-1].crc_after)
    assert [body for chunk in chunks for body in chunk.bodies] == BODIES


@each("batch", [1, 7, 999, 1000, 1001, 2499])
def test_chunks_do_not_depend_on_the_batches(batch: int) -> None:
    """However the rows arrive, the chunks are the same."""
    assert cut(BODIES, batch=batch)[0] == cut(BODIES)[0]


@pytest.mark.slow
def test_chunks_are_bounded_in_bytes() -> None:
    """A chunk has at most 1 MiB, but for a single larger body, which goes alone; whatever the batches."""
    rng = random.Random(7)
    sizes = [rng.choice([10, 1000, 300_000, MAX_BYTES + 1]) for _ in range(300)]
    bodies = [b"x" * size for size in sizes]
    chunks, _ = cut(bodies)
    assert [body for chunk in chunks for body in chunk.bodies] == bodies
    for chunk in chunks:
        total = sum(map(len, chunk.bodies))
        assert total <= MAX_BYTES or len(chunk.bodies) == 1
        assert len(chunk.bodies) <= MAX_ROWS
    # As few as they can be: the first body of the next one would not have fitted.
    for chunk, following in pairwise(chunks):
        assert sum(map(len, chunk.bodies)) + len(following.bodies[0]) > MAX_BYTES
    assert cut(bodies, batch=1)[0] == chunks == cut(bodies, batch=13)[0]


def test_what_was_taken_is_left_out() -> None:
    """A repetition begins after the rows of the ledger, with the chunks of the first time."""
    chunks, _ = cut(BODIES)
    taken = LedgerPosition(2000, chunks[1].crc_after)
    again, stream = cut(BODIES, taken=taken)
    assert again == chunks[2:]
    everything, _ = cut(BODIES, taken=stream.position)
    assert everything == []


def test_other_rows_than_taken_are_refused() -> None:
    """One byte that differs anywhere before the ledger's position is found."""
    chunks, _ = cut(BODIES)
    taken = LedgerPosition(2000, chunks[1].crc_after)
    for other in (
        [b"x", *BODIES[1:]],
        [*BODIES[:1999], b"x", *BODIES[2000:]],
        [BODIES[1], BODIES[0], *BODIES[2:]],
    ):
        with pytest.raises(BulkChangedError) as caught:
            cut(other, taken=taken)
        assert caught.value.taken == 2000
    assert len(cut([*BODIES[:2000], b"x"], taken=taken)[0]) == 1


def test_fewer_rows_than_taken_are_refused() -> None:
    """A partition that has become shorter is another one."""
    chunks, _ = cut(BODIES)
    with pytest.raises(BulkChangedError):
        cut(BODIES[:1500], taken=LedgerPosition(2000, chunks[1].crc_after))


def test_crc_knows_where_bodies_end_and_words() -> None:
    """The same bytes in other bodies, or under other words, are other rows."""
    first, _ = cut([b"ab", b"c"])
    second, _ = cut([b"a", b"bc"])
    assert first[0].crc_after != second[0].crc_after
    stream = Stream("w", "0.0", LedgerPosition())
    chunks = [*stream.add([b"ab", b"c"], [1, "", "", 2, "", ""]), *stream.flush()]
    assert chunks[0].crc_after != first[0].crc_after
    assert list(chunks[0].words) == [1, "", "", 2, "", ""]


def test_words_stay_with_their_rows() -> None:
    """Over chunks and batches each row keeps its three words."""
    stream, chunks = Stream("w", "", LedgerPosition()), []
    for first in range(0, 2500, 300):
        bodies = BODIES[first : first + 300]
        words = [word for body in bodies for word in (int(body), "", body.decode())]
        chunks += stream.add(bodies, words)
    chunks += stream.flush()
    assert [len(chunk.bodies) for chunk in chunks] == [1000, 1000, 500]
    for chunk in chunks:
        assert list(chunk.words[2::3]) == [body.decode() for body in chunk.bodies]
        assert list(chunk.words[::3]) == [int(body) for body in chunk.bodies]


def test_rows_without_a_ledger_are_all_sent() -> None:
    """Without a name nothing is compared, and rows are counted for their ids alone."""
    chunks, _ = cut(BODIES, name="", taken=LedgerPosition(2000, 1))
    assert [(chunk.first, chunk.stream, chunk.crc_after) for chunk in chunks] == [
        (0, "", 0),
        (1000, "", 0),
        (2000, "", 0),
    ]


@each(
    "stored, position",
    [
        (None, LedgerPosition()),
        (b"7 99", LedgerPosition(7, 99)),
        (b"rubbish", LedgerPosition()),
        (b"7", LedgerPosition()),
    ],
)
def test_a_position_is_read_from_the_ledger(stored: bytes | None, position: LedgerPosition) -> None:
    """What cannot be read counts as nothing taken: the script then refuses what does not continue."""
    assert LedgerPosition.of(stored) == position
