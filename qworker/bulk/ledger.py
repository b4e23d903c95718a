"""Streams of rows, cut into the chunks that the ledger of a bulk write counts. No Redis here.

A stream holds the rows of one partition for one queue and one priority, in their order. A repeated task attempt, or a
job run again under the same write id, brings the same streams; the ledger in Redis (`lua/lib/ledger.lua`) knows how
many rows of each are stored, and their CRC. Chunks depend on the rows alone, not on the sizes of the batches in which
the rows arrive.

In a divided queue each shard has a ledger, and rows take turns in blocks: a stream has the blocks of one shard. The
ledger of the first shard notes how many shards the write uses: dividing the queue during the write changes no stream.
The rest of a stream whose shard is draining goes to the first shard, as a stream `<name>@<shard>`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.engine.command import Word
from qworker.engine.send_chunk import Chunk
from qworker.errors import BulkChangedError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS
from qworker.wire.numbers import whole
from qworker.wire.shards import Shards

__all__ = [
    "MAX_BYTES",
    "MAX_ROWS",
    "MOVED",
    "SHARDS",
    "LedgerPosition",
    "Stream",
    "ledgers_of",
    "moved_name",
    "shares",
]

#: Bounds of a chunk: one call, which blocks the server. A single larger body goes alone.
MAX_ROWS: Final = 1000
MAX_BYTES: Final = 2**20
#: Words that a row may have beside its body: delay ms, ttl ms, row id.
WORDS: Final = 3
#: Field of the ledger of the first shard: over how many shards the write spreads its rows.
SHARDS: Final = "shards"
#: In the place of a stream's position: its rest is in the first shard.
MOVED: Final = "moved"


def ledgers_of(namespace: str, queue: str, write_id: str, shards: bytes | None) -> list[str]:
    """Return the keys of the ledgers that a write has in a queue; `shards`: the field of that name in the first one."""
    number = min(whole(shards) or 1, MAX_SHARDS)
    names = Shards(number, number).names(queue)
    return [QueueKeys(namespace, name).bulk(write_id) for name in names]


def moved_name(stream: str, shard: int) -> str:
    """Name the rest of a shard's stream in the ledger of the first shard."""
    return f"{stream}@{shard}"


def shares(start: int, count: int, partition: int, shards: int) -> Iterator[tuple[int, range]]:
    """Divide the rows `start` to `start + count - 1` of a partition among shards, in blocks of 1,000 rows.

    Yields shard and rows, counted from `start`. Partitions begin with different shards.
    """
    first = 0
    while first < count:
        block, used = divmod(start + first, MAX_ROWS)
        size = min(MAX_ROWS - used, count - first)
        yield (partition + block) % shards, range(first, first + size)
        first += size


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """A position in a stream: the number of rows before it, and their CRC."""

    rows: int = 0
    crc: int = 0

    @classmethod
    def of(cls, stored: bytes | None) -> LedgerPosition:
        """Read a stream's field of the ledger; None: no row is stored."""
        if stored is None:
            return cls()
        rows, crc = map(whole, stored.partition(b" ")[::2])
        return cls() if rows is None or crc is None else cls(rows, crc)

    def after(
        self, bodies: Sequence[bytes], sizes: array[int], words: Sequence[Word]
    ) -> LedgerPosition:
        """Return the position after these rows. The CRC covers sizes: 'ab', 'c' differ from 'a', 'bc'."""
        crc = zlib.crc32(sizes.tobytes(), self.crc)
        crc = zlib.crc32(b"".join(bodies), crc)
        if words:
            crc = zlib.crc32("\0".join(map(str, words)).encode(), crc)
        return LedgerPosition(self.rows + len(bodies), crc)


class Stream:
    """Cuts the rows of one stream into chunks, and leaves out rows that are stored already.

    `name` is its field in the ledger; without one (rows with ids, or without a ledger) every row is sent. `taken` is
    the ledger's position when this attempt began. The name changes when the rest moves to the first shard.
    """

    def __init__(self, write_id: str, name: str, taken: LedgerPosition) -> None:
        self.name = name
        self.taken = taken
        self.position = LedgerPosition()
        self._write_id = write_id
        self._bodies: list[bytes] = []
        self._words: list[Word] = []
        self._sizes: array[int] = array("Q")

    def add(self, bodies: Sequence[bytes], words: Sequence[Word] = ()) -> Iterator[Chunk]:
        """Add rows, with three words each or none; yields the chunks that are full. Exhaust the iterator.

        Raises `BulkChangedError` if the rows differ from those stored.
        """
        self._bodies += bodies
        self._words += words
        self._sizes.extend(map(len, bodies))
        yield from self._cut(last=False)

    def flush(self) -> Iterator[Chunk]:
        """Yield the rows of the last, partial chunk. Raises `BulkChangedError` as `add` does."""
        yield from self._cut(last=True)

    def check_end(self) -> None:
        """Raise `BulkChangedError` if fewer rows came than are stored; call it after the last `flush`."""
        if self.name and self.position.rows < self.taken.rows:
            raise BulkChangedError(self._write_id, self.name, self.taken.rows)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies that do not fill a chunk yet."""
        return sum(self._sizes)

    def _cut(self, *, last: bool) -> Iterator[Chunk]:
        start = 0
        while start < len(self._bodies):
            sizes = self._sizes[start : start + MAX_ROWS]
            if sum(sizes) > MAX_BYTES:
                sizes = sizes[: _fitting(sizes)]
            elif len(sizes) < MAX_ROWS and not last:
                break
            stop = start + len(sizes)
            chunk = self._chunk(
                self._bodies[start:stop],
                sizes,
                self._words[start * WORDS : stop * WORDS] if self._words else (),
            )
            if chunk is not None:
                yield chunk
            start = stop
        del self._bodies[:start], self._sizes[:start], self._words[: start * WORDS]

    def _chunk(self, bodies: list[bytes], sizes: array[int], words: Sequence[Word]) -> Chunk | None:
        before = self.position
        if not self.name:
            self.position = LedgerPosition(before.rows + len(bodies))
            return Chunk("", before.rows, bodies, words=words)
        self.position = after = before.after(bodies, sizes, words)
        if after.rows < self.taken.rows:
            return None
        if after.rows == self.taken.rows:
            if after.crc != self.taken.crc:
                raise BulkChangedError(self._write_id, self.name, self.taken.rows)
            return None
        # A chunk that begins before the ledger's position is refused there.
        return Chunk(self.name, before.rows, bodies, before.crc, after.crc, words)


def _fitting(sizes: array[int]) -> int:
    """Count the first rows that fit into a chunk; at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > MAX_BYTES:
            return max(number, 1)
    return len(sizes)
