"""Where journals begin and end, and whether they are those that were read: questions to Redis, answered by positions.

`ranges` says which entries a read takes, and `scanning` reads them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from qworker.client.namespace.queues import list_shards
from qworker.pipeline.source.entries import JournalEntry, read_entry, within
from qworker.pipeline.source.offsets import Offsets, Position, Range
from qworker.pipeline.source.ranges import Ranges
from qworker.pipeline.source.reading import Reader, Words
from qworker.wire.names import split_shard_name
from qworker.wire.numbers import whole

__all__ = ["Journals", "Known", "find_queues"]

#: Entries that were read: (epoch, entry) → number of the first event, events, and when it was written, in ms.
Known = Mapping[tuple[int, int], tuple[int, int, int]]


def find_queues(reader: Reader, namespace: str, patterns: Sequence[str]) -> list[str]:
    """Name the queues that match the patterns, and their shards as `queue/3`, sorted; no patterns: the whole index.

    Plain names need not exist yet.
    """
    names = {name for name in patterns if not any(sign in name for sign in "*?[")}
    for shard in reader.run(list_shards(namespace)):
        queue, _ = split_shard_name(shard)
        if not patterns or any(fnmatchcase(queue, pattern) for pattern in patterns):
            names.add(shard)
    return sorted(names)


class Journals(Ranges):
    """The journals of some queues. Every method takes a few round trips to each server, however long they are."""

    # -- positions ---------------------------------------------------------------------------------

    def earliest(self) -> dict[str, Position]:
        """The first stored entry of each journal; queues without any are left out."""
        entries = self._entries((queue, "-", "+") for queue in self._keys)
        return {
            queue: entry.position for queue, entry in zip(self._keys, entries, strict=True) if entry
        }

    def latest(self) -> dict[str, Position]:
        """The position after the last entry of each journal; queues that never had one are left out.

        Stream and counters are read, and the later position is right: that of the counters if the last entries were
        deleted, that of the stream if the counters were lost.
        """
        commands: list[Words] = []
        for keys in self._keys.values():
            commands += [
                ("XREVRANGE", keys.journal, "+", "-", "COUNT", 1),
                ("HGET", keys.meta, "journal_epoch"),
                ("HMGET", keys.stats, "journal_entries", "journal_events"),
            ]
        replies = iter(self._reader.execute_all(commands))
        latest: dict[str, Position] = {}
        for queue, last, epoch, counted in zip(self._keys, replies, replies, replies, strict=True):
            positions = [read_entry(queue, last[0]).following] if last else []
            if (position := _counted(epoch, *counted)) is not None:
                positions.append(position)
            if positions:
                latest[queue] = max(positions)
        return latest

    def at_time(self, ms: int) -> dict[str, Position]:
        """The first entry of each journal that was written at `ms` or later; after the last if there is none.

        Costs some twenty reads of one entry per queue.
        """
        positions = self.latest()
        for queue, start in self.earliest().items():
            for span in self.spans(queue, start, positions[queue]):
                if (hit := self._search(span, lambda entry: entry.ms >= ms)) is not None:
                    positions[queue] = hit
                    break
        return positions

    def _search(self, span: Range, fits: Callable[[JournalEntry], bool]) -> Position | None:
        """Return the first entry that fits, after which all fit, by a binary search; None if none does."""
        low, high, hit = span.first, span.stop, None
        while low < high:
            middle = (low + high) // 2
            (entry,) = self._entries([within(span, middle)])
            if entry is None:
                high = middle
            elif fits(entry):
                high, hit = middle, entry.position
            else:
                low = entry.position.entry + 1
        return hit

    # -- journals that were rolled back -----------------------------------------------------------

    def rolled_back(self, begun: Offsets, latest: Offsets) -> list[str]:
        """Name the queues whose journal is not the one that was read up to these positions.

        It ends before them: the server came back with older data. Or the entry before a position is another one than
        was read: numbers were used again since.
        """
        known = [
            (queue, position)
            for queue, position in begun.items()
            if queue in latest and queue in self._keys
        ]
        marked = [(queue, position) for queue, position in known if position.mark is not None]
        marks = dict(zip((queue for queue, _ in marked), self._marks(marked), strict=True))
        return [
            queue
            for queue, position in known
            if latest[queue].key < position.key
            or (marks.get(queue) is not None and marks[queue] != position.mark)
        ]

    def marked(self, reached: Offsets, begun: Offsets) -> dict[str, Position]:
        """Add to positions the checksum of the entry before; one that has not moved stays as it is."""
        moved = [
            (queue, position)
            for queue, position in reached.items()
            if queue in self._keys
            and position.entry
            and (queue not in begun or begun[queue].key != position.key)
        ]
        marks = zip(moved, self._marks(moved), strict=True)
        return {**reached, **{queue: replace(at, mark=mark) for (queue, at), mark in marks}}

    def fork(self, queue: str, known: Known) -> Position:
        """Return the first stored entry that is not known as it is; the position after the last one if all are.

        All entries before it must be known.
        """
        latest = self.latest()[queue]
        for span in self.spans(queue, None, latest):
            if (hit := self._search(span, lambda entry: not _is_known(entry, known))) is not None:
                return hit
        return latest

    def first_ms(self, queue: str, position: Position) -> int:
        """Return when the entry at a position, or the next one, was written; the server's time if there is none."""
        (entry,) = self._entries([(queue, f"{position.epoch}-{position.entry}", "+")])
        return self._now_ms() if entry is None else entry.ms

    def _marks(self, positions: Sequence[tuple[str, Position]]) -> list[int | None]:
        """Compute the checksum of the entry before each position; None if it is not stored."""
        ids = [f"{position.epoch}-{position.entry - 1}" for _, position in positions]
        replies = self._reader.execute_all(
            [
                ("XRANGE", self._keys[queue].journal, at, at)
                for (queue, _), at in zip(positions, ids, strict=True)
            ]
        )
        return [
            zlib.crc32(b"\n".join(reply[0][1]), zlib.crc32(reply[0][0])) if reply else None
            for reply in replies
        ]

    # -- readers -----------------------------------------------------------------------------------

    def note_progress(self, name: str, offsets: Offsets) -> None:
        """Record a reader's position, so that others can warn before the cap trims entries that it has not read.

        Advisory: no read depends on it. Queues that are gone are left out.
        """
        ms = self._now_ms()
        known = [
            (self._keys[queue], position)
            for queue, position in offsets.items()
            if queue in self._keys
        ]
        there = self._reader.execute_all([("EXISTS", keys.journal) for keys, _ in known])
        self._reader.execute_all(
            [
                ("HSET", keys.readers, name, f"{position.epoch}-{position.entry - 1} {ms}")
                for (keys, position), exists in zip(known, there, strict=True)
                if exists and position.entry
            ]
        )


def _is_known(entry: JournalEntry, known: Known) -> bool:
    place = entry.position
    return known.get(place.key) == (place.event, entry.events, entry.ms)


def _counted(epoch: bytes | None, entries: bytes | None, events: bytes | None) -> Position | None:
    numbers = [number for word in (epoch, entries, events) if (number := whole(word)) is not None]
    return Position(*numbers) if len(numbers) == 3 else None
