"""Which entries a read takes: between two positions, up to a limit, in parts of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from qworker.pipeline.source.entries import EntryReader, within
from qworker.pipeline.source.offsets import Offsets, Position, Range, shares

__all__ = ["Ranges"]

#: Epochs of one journal that a read goes through; each is a loss of counters, so there is one, sometimes two.
_MAX_EPOCHS: Final = 1000
#: Fewer entries are not worth a task.
_SMALLEST_PART: Final = 200


class Ranges(EntryReader):
    """Ranges of the journals of some queues."""

    def spans(self, queue: str, start: Position | None, end: Position) -> Iterator[Range]:
        """Yield the entries between two positions, a range per epoch; without a start, from the journal's beginning on.

        Entries of an epoch after its last stored one are unknown once a new epoch has begun; they do not count as lost.
        """
        position = start or Position(0, 0)
        for _ in range(_MAX_EPOCHS):
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
        (entry,) = self._entries([within(span, span.first)])
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
                (entry,) = self._entries([within(span, span.begin + entries)])
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
            (entry,) = self._entries([within(span, middle)])
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
        for entry in self._entries(within(span, first) for first in wanted):
            if entry is None:
                break
            cut = entry.position
            if cut.entry > span.begin:
                yield replace(span, stop=cut.entry, stop_event=cut.event)
                span = replace(span, first=cut.entry, begin=cut.entry, event=cut.event)
        yield span


def _entries_in(span: Range) -> int:
    return span.stop - span.begin


def _events_in(span: Range) -> int:
    """Count the events of a span; its entries if their numbers are unknown."""
    if span.event is None or span.stop_event is None or span.begin >= span.stop:
        return _entries_in(span)
    return max(_entries_in(span), span.stop_event - span.event)
