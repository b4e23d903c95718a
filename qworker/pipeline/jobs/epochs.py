"""The order of the epochs of a shard. No Spark here.

Within one stream a later epoch is a greater number. If a queue is removed and made again while the clock is set back,
the later one is smaller, and its events may be earlier too. Then only the reader knows: it read one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from qworker.pipeline.jobs.holes import Gap, Shard, Span
from qworker.pipeline.source.offsets import Position

__all__ = ["Epochs", "Known", "read_before"]

#: How far epochs were read, in their order: each, and the number of the first event that was not.
Known = tuple[tuple[int, int], ...]
_EVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one shard. `known`: those that an earlier run has read; `end`: how far the archive reaches."""

    known: Known = ()
    end: Position | None = None

    def sort(self, spans: Sequence[Span]) -> list[Span]:
        """Sort spans: those known, those of the archive by time, that in which it ends, those of the live journal."""
        ranks = {epoch: rank for rank, (epoch, _) in enumerate(self.known)}
        end = None if self.end is None else self.end.epoch

        def key(span: Span) -> tuple[int, int, datetime, int]:
            if span.stored is None:
                return (3, 0, _EVER, span.epoch)
            if span.epoch in ranks and span.epoch != end:
                return (0, ranks[span.epoch], _EVER, 0)
            return (2 if span.epoch == end else 1, 0, span.since or _EVER, span.epoch)

        return sorted(spans, key=key)

    def present(self, spans: Sequence[Span]) -> int | None:
        """The epoch that the shard is in, of spans in their order; None: they do not tell."""
        live = [span.epoch for span in spans if span.stored is None]
        if live:
            return live[-1]
        if self.end is not None:
            return self.end.epoch
        if [span.epoch for span in spans] != sorted(span.epoch for span in spans):
            return None
        pairs = pairwise(spans)
        in_order = all((one.until or _EVER) <= (other.since or _EVER) for one, other in pairs)
        return spans[-1].epoch if in_order and spans else None

    def all(self, spans: Sequence[Span]) -> list[int]:
        """List the epochs that are known, or of spans, or in which the archive ends."""
        end = [] if self.end is None else [self.end.epoch]
        return [
            *dict.fromkeys([*(epoch for epoch, _ in self.known), *(s.epoch for s in spans), *end])
        ]

    def read(self, spans: Sequence[Span]) -> Known:
        """How far epochs of the archive are read after these spans, in their order; as before if it has no end."""
        if self.end is None or self.end.event is None:
            return self.known
        found = dict(self.known)
        for span in spans:
            if span.stored is not None:
                found[span.epoch] = max(found.get(span.epoch, 0), span.stored + 1)
        last = found.pop(self.end.epoch, 0)
        return (*found.items(), (self.end.epoch, max(last, self.end.event)))


def read_before(
    known: Mapping[Shard, Known], back: Mapping[Shard, Sequence[Gap]]
) -> dict[Shard, Known]:
    """How far each shard was read, without events rolled back since."""
    left = dict(known)
    for shard, gaps in back.items():
        for gap in gaps:
            epochs = left.get(shard, ())
            place = next((at for at, (epoch, _) in enumerate(epochs) if epoch == gap.epoch), None)
            if place is None:
                continue
            epoch, stop = epochs[place]
            left[shard] = (*epochs[:place], (epoch, min(stop, gap.number)))
    return left
