"""Reads the entries of a range, the next page in flight while one is decoded, and shows which events are missing.

Entries of the range that are gone raise `EventsLostError`, or leave a row `gap`. Events that the journal shed, because
the server was nearly full, were never written: they always leave a row, and never an error. So do events that were read
and that a rolled back journal lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from qworker.errors import EventsLostError
from qworker.pipeline.source.decoding import EntryPage, decode, gap_batch
from qworker.pipeline.source.offsets import Range
from qworker.pipeline.source.reading import Reader, Words

__all__ = ["forgotten_batch", "scan"]


def scan(
    reader: Reader, key: str, part: Range, *, fetch: int, fail_on_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range as batches of the table `journal`, in order; `fetch` entries are read per call.

    Raises `EventsLostError`, and `PipelineError` for entries in another format.
    """
    if part.forgotten is not None:
        yield forgotten_batch(part)
        return
    progress = _Progress(part, fail_on_loss)
    for reply in reader.replies(_pages(key, part, fetch)):
        if reply:
            yield from progress.decode(EntryPage.of(part.queue, reply))
    yield from progress.end()


def forgotten_batch(part: Range) -> pa.RecordBatch:
    """Make the row `gap` of a journal rolled back: earlier events no longer count from its number on."""
    lost = part.forgotten
    assert lost is not None
    events = "some" if lost.events is None else str(lost.events)
    reason = f"{events} events rolled back: they were read, and are not in Redis any more"
    return gap_batch(part.queue, part.epoch, part.first, part.event or 0, reason, lost.ms)


def _pages(key: str, part: Range, fetch: int) -> Iterator[Words]:
    for first in range(part.begin, part.stop, fetch):
        last = min(first + fetch, part.stop) - 1
        yield "XRANGE", key, f"{part.epoch}-{first}", f"{part.epoch}-{last}"


class _Progress:
    """How far a range was read: the next entry, and the number of the next event."""

    def __init__(self, part: Range, fail_on_loss: bool) -> None:
        self._part = part
        self._fail_on_loss = fail_on_loss
        self._entry = part.first
        self._event = part.event

    def decode(self, page: EntryPage) -> Iterator[pa.RecordBatch]:
        """Yield the events of a page, and its gaps in between."""
        start = 0
        for index in self._breaks(page):
            yield from self._decoded(page, start, index)
            yield from self._gap(
                int(page.entries[index]), int(page.numbers[index]), int(page.times_ms[index])
            )
            start = index
        yield from self._decoded(page, start, len(page.groups))

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the gap after the last entry, if there is one."""
        yield from self._gap(self._part.stop, self._part.stop_event, None)

    def _breaks(self, page: EntryPage) -> list[int]:
        """Indexes of the entries before which something is missing."""
        follows_entry = page.entries[1:] == page.entries[:-1] + 1
        follows_event = page.numbers[1:] == page.following[:-1]
        breaks: list[int] = ((~(follows_entry & follows_event)).nonzero()[0] + 1).tolist()
        first_fits = page.entries[0] == self._entry and self._event in (None, page.numbers[0])
        return breaks if first_fits else [0, *breaks]

    def _decoded(self, page: EntryPage, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        if start < stop:
            yield decode(self._part.queue, self._part.epoch, page.cut(start, stop))
            self._entry = int(page.entries[stop - 1]) + 1
            self._event = int(page.following[stop - 1])

    def _gap(self, entry: int, event: int | None, ms: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the gap before an entry. Raises `EventsLostError` if lost entries are an error."""
        entries = entry - self._entry
        events = None if event is None or self._event is None else event - self._event
        if entries > 0 and self._fail_on_loss:
            raise EventsLostError(self._part.queue, self._part.epoch, self._entry, entry - 1)
        if entries <= 0 and (events is None or events <= 0):
            return
        number = self._event
        if number is None:
            # Their number is unknown: at least one per entry.
            number = 0 if event is None else max(0, event - entries)
        yield gap_batch(
            self._part.queue,
            self._part.epoch,
            self._entry,
            number,
            _reason(entries, events),
            ms,
        )
        self._entry, self._event = entry, event


def _reason(entries: int, events: int | None) -> str:
    if entries <= 0:
        return f"{events} events shed"
    if events is None:
        return f"{entries} events or more in {entries} entries"
    return f"{events} events in {entries} entries"
