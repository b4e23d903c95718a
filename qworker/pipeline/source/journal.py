"""Where journals begin and end, and which entries a read takes: questions to Redis, answered in places and ranges.

Nothing here reads more than single entries; `qworker.pipeline.source.scanning` reads them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from qworker.client.registry import places
from qworker.errors import PipelineError
from qworker.pipeline.source.offsets import MAX_NUMBER, Offsets, Place, Range, shares
from qworker.pipeline.source.reading import Reader, Words
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_place
from qworker.wire.numbers import whole

__all__ = ["Journals", "find_queues"]

#: Epochs of one journal that a read goes through; each is a loss of counters, so there is one, at times two.
_MOST_EPOCHS: Final = 1000
#: Fewer entries than this are not worth a task of their own.
_SMALLEST_PART: Final = 200


def find_queues(reader: Reader, namespace: str, patterns: Sequence[str]) -> list[str]:
    """Name the queues that the patterns mean, and their shards as `queue/3`, sorted; none: all that the index lists.

    Plain names need not exist yet.
    """
    found = {name for name in patterns if not any(sign in name for sign in "*?[")}
    for place in reader.run(places(namespace)):
        queue, _ = split_place(place)
        if not patterns or any(fnmatchcase(queue, pattern) for pattern in patterns):
            found.add(place)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry: its place, how many events are in it, when it was written."""

    place: Place
    events: int
    ms: int

    @property
    def behind(self) -> Place:
        """The place behind it."""
        place = self.place
        return Place(place.epoch, place.entry + 1, (place.event or 0) + self.events)


class Journals:
    """The journals of some queues. Every method is a few round trips to each server, whatever lies in them."""

    def __init__(self, reader: Reader, namespace: str, queues: Sequence[str]) -> None:
        self._reader = reader
        self._keys = {queue: QueueKeys(namespace, queue) for queue in queues}

    # -- places ------------------------------------------------------------------------------------

    def earliest(self) -> dict[str, Place]:
        """The first entry that is stored of each journal; queues without any are left out."""
        found = self._entries((queue, "-", "+") for queue in self._keys)
        return {queue: entry.place for queue, entry in zip(self._keys, found, strict=True) if entry}

    def latest(self) -> dict[str, Place]:
        """The place behind the last entry of each journal; queues that never had one are left out.

        Stream and counters are asked, and the later one is right: the counters where the last entries were deleted or
        nothing is stored any more, the stream where the counters were lost.
        """
        commands: list[Words] = []
        for keys in self._keys.values():
            commands += [
                ("XREVRANGE", keys.journal, "+", "-", "COUNT", 1),
                ("HGET", keys.meta, "journal_epoch"),
                ("HMGET", keys.stats, "journal_entries", "journal_events"),
            ]
        replies = iter(self._reader.ask_all(commands))
        found: dict[str, Place] = {}
        for queue, last, epoch, counted in zip(self._keys, replies, replies, replies, strict=True):
            places = [_entry(queue, last[0]).behind] if last else []
            if (place := _counted(epoch, *counted)) is not None:
                places.append(place)
            if places:
                found[queue] = max(places)
        return found

    def at_time(self, ms: int) -> dict[str, Place]:
        """The first entry of each journal that was written at `ms` or later; behind the last where there is none.

        A binary search over the numbers: some twenty reads of one entry per queue.
        """
        ends = self.latest()
        found = {}
        for queue, place in self.earliest().items():
            found[queue] = ends[queue]
            for span in self.spans(queue, place, ends[queue]):
                if (hit := self._search(span, ms)) is not None:
                    found[queue] = hit
                    break
        return {**ends, **found}

    def _search(self, span: Range, ms: int) -> Place | None:
        low, high, hit = span.first, span.stop, None
        while low < high:
            middle = (low + high) // 2
            (entry,) = self._entries([_within(span, middle)])
            if entry is None:
                high = middle
            elif entry.ms >= ms:
                high, hit = middle, entry.place
            else:
                low = entry.place.entry + 1
        return hit

    # -- ranges ------------------------------------------------------------------------------------

    def spans(self, queue: str, start: Place | None, end: Place) -> Iterator[Range]:
        """Yield what lies between two places, a range per epoch; without a start, from the journal's beginning on.

        What an epoch had behind its last stored entry when a new one began nobody knows, and it does not count as lost.
        """
        place = start or Place(0, 0)
        for _ in range(_MOST_EPOCHS):
            if place.epoch == end.epoch:
                break
            (entry,) = self._entries(
                [(queue, f"{place.epoch}-{place.entry}", f"{end.epoch - 1}-+")]
            )
            if entry is None:
                place = Place(end.epoch, 0, 0)
                break
            epoch = entry.place.epoch
            if epoch != place.epoch:
                place = Place(epoch, 0, 0)
            (last,) = self._entries([(queue, f"{epoch}-+", f"{epoch}-0")], verb="XREVRANGE")
            behind = last.behind if last else place
            yield Range(queue, epoch, place.entry, behind.entry, place.event, behind.event)
            place = Place(epoch + 1, 0, 0)
        if place.epoch != end.epoch:
            place = Place(end.epoch, 0, 0)
        if place.entry < end.entry:
            yield Range(queue, end.epoch, place.entry, end.entry, place.event, end.event)

    def advance(self, start: Offsets, ends: Offsets, limit: int | None) -> dict[str, Place]:
        """Return the places up to which one batch reads: the ends, or together `limit` entries behind the start.

        The limit is divided in proportion to what waits in each queue. Queues that are gone keep their place.
        """
        spans = {
            queue: [self._stored(span) for span in self.spans(queue, start.get(queue), end)]
            for queue, end in ends.items()
        }
        waiting = [sum(span.stop - span.begin for span in each) for each in spans.values()]
        reached = {**start, **ends}
        if limit is None or sum(waiting) <= limit:
            return reached
        for queue, left in zip(spans, shares(waiting, limit), strict=True):
            reached[queue] = self._behind(spans[queue], left, start.get(queue), ends[queue])
        return {queue: place for queue, place in reached.items() if place.key != (0, 0)}

    def _stored(self, span: Range) -> Range:
        """Note where a range really begins, and what the number of its first event has to be where nobody knew."""
        (entry,) = self._entries([_within(span, span.first)])
        if entry is None:
            return replace(span, begin=span.stop)
        begin = entry.place
        event = span.event
        if event is None and begin.entry == span.first:
            event = begin.event
        return replace(span, begin=begin.entry, event=event)

    def _behind(self, spans: list[Range], left: int, start: Place | None, end: Place) -> Place:
        """Return the place behind the first `left` entries of the spans."""
        for span in spans:
            if left <= 0:
                break
            if left < span.stop - span.begin:
                (entry,) = self._entries([_within(span, span.begin + left)])
                return entry.place if entry else Place(span.epoch, span.stop, span.stop_event)
            left -= span.stop - span.begin
            start = Place(span.epoch, span.stop, span.stop_event)
        else:
            return end
        return start or Place(0, 0)

    def plan(self, start: Offsets, end: Offsets, parts: int) -> list[Range]:
        """Cut what lies between the offsets into ranges, `parts` of about the same size or more.

        A range begins at an entry that is stored, so that whatever is missing in front of it belongs to the one
        before, and the number of its first event is known.
        """
        spans = [
            self._stored(span)
            for queue, place in end.items()
            if queue in self._keys
            for span in self.spans(queue, start.get(queue), place)
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
            place = entry.place
            if place.entry > span.begin:
                yield replace(span, stop=place.entry, stop_event=place.event)
                span = replace(span, first=place.entry, begin=place.entry, event=place.event)
        yield span

    # -- readers -----------------------------------------------------------------------------------

    def note_progress(self, name: str, offsets: Offsets) -> None:
        """Write down how far a reader has come, for whoever warns before the cap eats what it has not read.

        Advisory: no read goes by it. Queues that are gone are left alone.
        """
        seconds, microseconds = self._reader.ask("TIME")
        ms = int(seconds) * 1000 + int(microseconds) // 1000
        known = [
            (self._keys[queue], place) for queue, place in offsets.items() if queue in self._keys
        ]
        there = self._reader.ask_all([("EXISTS", keys.journal) for keys, _ in known])
        self._reader.ask_all(
            [
                ("HSET", keys.readers, name, f"{place.epoch}-{place.entry - 1} {ms}")
                for (keys, place), exists in zip(known, there, strict=True)
                if exists and place.entry
            ]
        )

    # -- entries -----------------------------------------------------------------------------------

    def _entries(
        self, asked: Iterable[tuple[str, str, str]], *, verb: str = "XRANGE"
    ) -> list[_Entry | None]:
        """Read the first entry of each (queue, from, to)."""
        asked = list(asked)
        replies = self._reader.ask_all(
            [
                (verb, self._keys[queue].journal, _bound(low), _bound(high), "COUNT", 1)
                for queue, low, high in asked
            ]
        )
        return [
            _entry(queue, reply[0]) if reply else None
            for (queue, _, _), reply in zip(asked, replies, strict=True)
        ]


def _bound(text: str) -> str:
    """Write an end of a range; `<epoch>-+` is the epoch's last possible entry."""
    return text[:-1] + str(MAX_NUMBER) if text.endswith("-+") else text


def _within(span: Range, first: int) -> tuple[str, str, str]:
    return span.queue, f"{span.epoch}-{first}", f"{span.epoch}-{max(first, span.stop - 1)}"


def _entry(queue: str, found: Any) -> _Entry:
    entry_id, fields = found
    epoch, _, number = entry_id.decode().partition("-")
    named: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        event, events, ms = (int(named[name]) for name in (b"n", b"k", b"t"))
    except (KeyError, ValueError):
        raise PipelineError(
            f"journal of queue {queue!r}: entry {entry_id.decode()} is none of qworker's; look at it with "
            "XRANGE, and XDEL it"
        ) from None
    return _Entry(Place(int(epoch), int(number), event), events, ms)


def _counted(epoch: bytes | None, entries: bytes | None, events: bytes | None) -> Place | None:
    numbers = [number for word in (epoch, entries, events) if (number := whole(word)) is not None]
    return Place(*numbers) if len(numbers) == 3 else None
