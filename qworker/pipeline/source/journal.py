"""Where journals begin and end, and which entries a read takes: questions to Redis, answered by positions and ranges.

Only single entries are read here; `qworker.pipeline.source.scanning` reads them all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from qworker.client.namespace.queues import list_shards
from qworker.errors import PipelineError
from qworker.pipeline.source.offsets import MAX_NUMBER, Offsets, Position, Range, shares
from qworker.pipeline.source.reading import Reader, Words
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name
from qworker.wire.numbers import whole

__all__ = ["Journals", "Known", "find_queues"]

#: Entries that were read: (epoch, entry) → number of the first event, events, and when it was written, in ms.
Known = Mapping[tuple[int, int], tuple[int, int, int]]

#: Epochs of one journal that a read goes through; each is a loss of counters, so there is one, sometimes two.
_MOST_EPOCHS: Final = 1000
#: Fewer entries are not worth a task.
_SMALLEST_PART: Final = 200


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


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry: its position, how many events are in it, when it was written."""

    position: Position
    events: int
    ms: int

    @property
    def following(self) -> Position:
        """The position after it."""
        position = self.position
        return Position(position.epoch, position.entry + 1, (position.event or 0) + self.events)


class Journals:
    """The journals of some queues. Every method takes a few round trips to each server, however long they are."""

    def __init__(self, reader: Reader, namespace: str, queues: Sequence[str]) -> None:
        self._reader = reader
        self._keys = {queue: QueueKeys(namespace, queue) for queue in queues}

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
            positions = [_entry(queue, last[0]).following] if last else []
            if (position := _counted(epoch, *counted)) is not None:
                positions.append(position)
            if positions:
                latest[queue] = max(positions)
        return latest

    def at_time(self, ms: int) -> dict[str, Position]:
        """The first entry of each journal that was written at `ms` or later; after the last if there is none.

        A binary search over the numbers: some twenty reads of one entry per queue.
        """
        positions = self.latest()
        for queue, start in self.earliest().items():
            for span in self.spans(queue, start, positions[queue]):
                if (hit := self._search(span, ms)) is not None:
                    positions[queue] = hit
                    break
        return positions

    def _search(self, span: Range, ms: int) -> Position | None:
        low, high, hit = span.first, span.stop, None
        while low < high:
            middle = (low + high) // 2
            (entry,) = self._entries([_within(span, middle)])
            if entry is None:
                high = middle
            elif entry.ms >= ms:
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

        All entries before it must be known: a binary search.
        """
        latest = self.latest()[queue]
        for span in self.spans(queue, None, latest):
            low, high, hit = span.first, span.stop, None
            while low < high:
                middle = (low + high) // 2
                (entry,) = self._entries([_within(span, middle)])
                if entry is None:
                    high = middle
                elif known.get(entry.position.key) == (
                    entry.position.event,
                    entry.events,
                    entry.ms,
                ):
                    low = entry.position.entry + 1
                else:
                    high, hit = middle, entry.position
            if hit is not None:
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

    def _now_ms(self) -> int:
        seconds, microseconds = self._reader.execute("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    # -- ranges ------------------------------------------------------------------------------------

    def spans(self, queue: str, start: Position | None, end: Position) -> Iterator[Range]:
        """Yield the entries between two positions, a range per epoch; without a start, from the journal's beginning on.

        Entries of an epoch after its last stored one are unknown once a new epoch has begun; they do not count as lost.
        """
        position = start or Position(0, 0)
        for _ in range(_MOST_EPOCHS):
            if position.epoch == end.epoch:
                break
            (entry,) = self._entries(
                [(queue, f"{position.epoch}-{position.entry}", f"{end.epoch - 1}-+")]
            )
            if entry is None:
                position = Position(end.epoch, 0, 0)
                break
            epoch = entry.position.epoch
            if epoch != position.epoch:
                position = Position(epoch, 0, 0)
            (last,) = self._entries([(queue, f"{epoch}-+", f"{epoch}-0")], verb="XREVRANGE")
            stop = last.following if last else position
            yield Range(queue, epoch, position.entry, stop.entry, position.event, stop.event)
            position = Position(epoch + 1, 0, 0)
        if position.epoch != end.epoch:
            position = Position(end.epoch, 0, 0)
        if position.entry < end.entry:
            yield Range(queue, end.epoch, position.entry, end.entry, position.event, end.event)

    def advance(
        self, start: Offsets, ends: Offsets, limit: int | None, *, events: bool = False
    ) -> dict[str, Position]:
        """Return the positions up to which one batch reads: the ends, or `limit` entries in all after the start.

        With `events` the limit counts events; a queue is read by whole entries, at least one, and a search in its
        journal takes some twenty reads of one entry. The limit is divided in proportion to the backlogs. Queues that
        are gone keep their position.
        """
        size = _events_in if events else _entries_in
        spans = {
            queue: [self._stored(span) for span in self.spans(queue, start.get(queue), end)]
            for queue, end in ends.items()
        }
        backlogs = [sum(map(size, ranges)) for ranges in spans.values()]
        reached = {**start, **ends}
        if limit is None or sum(backlogs) <= limit:
            return reached
        for queue, share in zip(spans, shares(backlogs, limit), strict=True):
            reached[queue] = self._after(spans[queue], share, start.get(queue), ends[queue], size)
        return {queue: position for queue, position in reached.items() if position.key != (0, 0)}

    def _stored(self, span: Range) -> Range:
        """Set where a range really begins, and the number of its first event if that was unknown."""
        (entry,) = self._entries([_within(span, span.first)])
        if entry is None:
            return replace(span, begin=span.stop)
        begin = entry.position
        event = span.event
        if event is None and begin.entry == span.first:
            event = begin.event
        return replace(span, begin=begin.entry, event=event)

    def _after(
        self,
        spans: list[Range],
        left: int,
        start: Position | None,
        end: Position,
        size: Callable[[Range], int],
    ) -> Position:
        """Return the position after the first `left` entries, or events, of the spans."""
        for span in spans:
            if left <= 0:
                break
            if left < size(span):
                entries = left if size is _entries_in else self._entries_of(span, left)
                (entry,) = self._entries([_within(span, span.begin + entries)])
                return entry.position if entry else Position(span.epoch, span.stop, span.stop_event)
            left -= size(span)
            start = Position(span.epoch, span.stop, span.stop_event)
        else:
            return end
        return start or Position(0, 0)

    def _entries_of(self, span: Range, events: int) -> int:
        """Return how many entries of a span hold at most this many events; at least 1."""
        low, high, most = span.begin + 1, span.stop, (span.event or 0) + events
        while low < high:
            middle = (low + high + 1) // 2
            (entry,) = self._entries([_within(span, middle)])
            if entry is not None and (entry.position.event or 0) <= most:
                low = middle
            else:
                high = middle - 1
        return low - span.begin

    def plan(self, start: Offsets, end: Offsets, parts: int) -> list[Range]:
        """Cut the entries between the offsets into `parts` ranges of about the same size, or more.

        A range begins at a stored entry, so that a gap before it belongs to the range before, and the number of its
        first event is known.
        """
        spans = [
            self._stored(span)
            for queue, stop in end.items()
            if queue in self._keys
            for span in self.spans(queue, start.get(queue), stop)
        ]
        entries = sum(span.stop - span.begin for span in spans)
        size = max(_SMALLEST_PART, -(-entries // max(1, parts)))
        return [part for span in spans for part in self._cut(span, size)]

    def _cut(self, span: Range, size: int) -> Iterator[Range]:
        number = max(1, round((span.stop - span.begin) / size))
        step = (span.stop - span.begin) / number
        wanted = [span.begin + round(index * step) for index in range(1, number)]
        for entry in self._entries(_within(span, first) for first in wanted):
            if entry is None:
                break
            cut = entry.position
            if cut.entry > span.begin:
                yield replace(span, stop=cut.entry, stop_event=cut.event)
                span = replace(span, first=cut.entry, begin=cut.entry, event=cut.event)
        yield span

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

    # -- entries -----------------------------------------------------------------------------------

    def _entries(
        self, bounds: Iterable[tuple[str, str, str]], *, verb: str = "XRANGE"
    ) -> list[_Entry | None]:
        """Read the first entry of each (queue, from, to)."""
        bounds = list(bounds)
        replies = self._reader.execute_all(
            [
                (verb, self._keys[queue].journal, _bound(low), _bound(high), "COUNT", 1)
                for queue, low, high in bounds
            ]
        )
        return [
            _entry(queue, reply[0]) if reply else None
            for (queue, _, _), reply in zip(bounds, replies, strict=True)
        ]


def _entries_in(span: Range) -> int:
    return span.stop - span.begin


def _events_in(span: Range) -> int:
    """Count the events of a span; its entries if their numbers are unknown."""
    if span.event is None or span.stop_event is None or span.begin >= span.stop:
        return _entries_in(span)
    return max(_entries_in(span), span.stop_event - span.event)


def _bound(text: str) -> str:
    """Write one end of a range; `<epoch>-+` is the epoch's last possible entry."""
    return text[:-1] + str(MAX_NUMBER) if text.endswith("-+") else text


def _within(span: Range, first: int) -> tuple[str, str, str]:
    return span.queue, f"{span.epoch}-{first}", f"{span.epoch}-{max(first, span.stop - 1)}"


def _entry(queue: str, reply: Any) -> _Entry:
    entry_id, fields = reply
    epoch, _, number = entry_id.decode().partition("-")
    named: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        event, events, ms = (int(named[name]) for name in (b"n", b"k", b"t"))
    except (KeyError, ValueError):
        raise PipelineError(
            f"journal of queue {queue!r}: qworker did not write entry {entry_id.decode()}; inspect it with XRANGE, "
            "and XDEL it"
        ) from None
    return _Entry(Position(int(epoch), int(number), event), events, ms)


def _counted(epoch: bytes | None, entries: bytes | None, events: bytes | None) -> Position | None:
    numbers = [number for word in (epoch, entries, events) if (number := whole(word)) is not None]
    return Position(*numbers) if len(numbers) == 3 else None
