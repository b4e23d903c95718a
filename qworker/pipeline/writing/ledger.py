"""Streams of rows, cut into the chunks that the ledger of a bulk write counts. No Redis and no Spark here.

A stream is what one partition has for one queue and one priority, in the order of the rows. A repeated task attempt,
or a whole job run again under the same write id, brings the same streams; the ledger in Redis (`lua/lib/ledger.lua`)
knows how many rows of each have been stored, and the CRC of them. Where chunks begin depends on the rows alone, not on
the sizes of the batches in which Spark happens to hand them over.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.client.commands.bulk import Chunk
from qworker.client.commands.command import Word
from qworker.errors import BulkChangedError
from qworker.wire.numbers import whole

__all__ = ["MAX_BYTES", "MAX_ROWS", "Place", "Stream"]

#: Bounds of a chunk: one call, in which nothing else of the server runs. A single larger body goes alone.
MAX_ROWS: Final = 1000
MAX_BYTES: Final = 2**20
#: Words that a row may have beside its body: delay ms, ttl ms, row id.
WORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stream: `rows` before it, and their CRC."""

    rows: int = 0
    crc: int = 0

    @classmethod
    def of(cls, stored: bytes | None) -> Place:
        """Read what the ledger says of a stream; None: nothing of it was taken."""
        if stored is None:
            return cls()
        rows, crc = map(whole, stored.partition(b" ")[::2])
        return cls() if rows is None or crc is None else cls(rows, crc)

    def after(self, bodies: Sequence[bytes], sizes: array[int], words: Sequence[Word]) -> Place:
        """Return the place behind these rows. The sizes go into the CRC: 'ab', 'c' are not 'a', 'bc'."""
        crc = zlib.crc32(sizes.tobytes(), self.crc)
        crc = zlib.crc32(b"".join(bodies), crc)
        if words:
            crc = zlib.crc32("\0".join(map(str, words)).encode(), crc)
        return Place(self.rows + len(bodies), crc)


class Stream:
    """Cuts the rows of one stream into chunks, and leaves out those that were taken before.

    `name` is that of the ledger; without one (rows that have ids, or want no ledger) every row is to be sent.
    `taken` is where the ledger stood when this attempt began.
    """

    def __init__(self, write_id: str, name: str, taken: Place) -> None:
        self.name = name
        self.taken = taken
        self.place = Place()
        self._write_id = write_id
        self._bodies: list[bytes] = []
        self._words: list[Word] = []
        self._sizes: array[int] = array("Q")

    def add(self, bodies: Sequence[bytes], words: Sequence[Word] = ()) -> Iterator[Chunk]:
        """Add rows, with three words each or none; yields the chunks that are full. Exhaust it.

        Raises `BulkChangedError` for other rows than those taken before.
        """
        self._bodies += bodies
        self._words += words
        self._sizes.extend(map(len, bodies))
        yield from self._cut(last=False)

    def flush(self) -> Iterator[Chunk]:
        """Yield the rows that fill no chunk. Raises `BulkChangedError` as `add` does."""
        yield from self._cut(last=True)

    def check_end(self) -> None:
        """Raise `BulkChangedError` where fewer rows came than had been taken; after the last `flush`."""
        if self.name and self.place.rows < self.taken.rows:
            raise BulkChangedError(self._write_id, self.name, self.taken.rows)

    @property
    def kept_back(self) -> int:
        """Bytes of the rows that fill no chunk yet."""
        return sum(self._sizes)

    def _cut(self, *, last: bool) -> Iterator[Chunk]:
        at = 0
        while at < len(self._bodies):
            sizes = self._sizes[at : at + MAX_ROWS]
            if sum(sizes) > MAX_BYTES:
                sizes = sizes[: _fitting(sizes)]
            elif len(sizes) < MAX_ROWS and not last:
                break
            following = at + len(sizes)
            chunk = self._chunk(
                self._bodies[at:following],
                sizes,
                self._words[at * WORDS : following * WORDS] if self._words else (),
            )
            if chunk is not None:
                yield chunk
            at = following
        del self._bodies[:at], self._sizes[:at], self._words[: at * WORDS]

    def _chunk(self, bodies: list[bytes], sizes: array[int], words: Sequence[Word]) -> Chunk | None:
        before = self.place
        if not self.name:
            self.place = Place(before.rows + len(bodies))
            return Chunk("", before.rows, bodies, words=words)
        self.place = after = before.after(bodies, sizes, words)
        if after.rows < self.taken.rows:
            return None
        if after.rows == self.taken.rows:
            if after.crc != self.taken.crc:
                raise BulkChangedError(self._write_id, self.name, self.taken.rows)
            return None
        # Where this chunk begins before what was taken, the ledger refuses it.
        return Chunk(self.name, before.rows, bodies, before.crc, after.crc, words)


def _fitting(sizes: array[int]) -> int:
    """Say how many of the first rows fit into a chunk; at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > MAX_BYTES:
            return max(number, 1)
    return len(sizes)
