"""The rows of a record that are of no message: gaps with their reason, and changes of the journal's mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qworker.pipeline.jobs.epochs import Known
from qworker.pipeline.jobs.holes import Gap, Shard, Span
from qworker.pipeline.jobs.spans import Stretch

__all__ = ["SpecialRows", "forgotten"]


@dataclass(frozen=True, slots=True)
class SpecialRows:
    """The rows that are of no message, by shard."""

    gaps: Mapping[Shard, list[Gap]]
    modes: Mapping[Shard, list[Any]]
    back: Mapping[Shard, list[Gap]]
    gone: Mapping[Shard, list[Gap]]

    @classmethod
    def of(cls, rows: Sequence[Any]) -> SpecialRows:
        """Sort rows `gap` and `mode` by what they tell."""
        gaps: dict[Shard, list[Gap]] = defaultdict(list)
        modes: dict[Shard, list[Any]] = defaultdict(list)
        back: dict[Shard, list[Gap]] = defaultdict(list)
        gone: dict[Shard, list[Gap]] = defaultdict(list)
        kinds = {"rolled back": back, "queue gone": gone}
        for row in rows:
            shard = (row.queue, row.shard)
            if row.event == "mode":
                modes[shard].append(row)
                continue
            gap = Gap.of(row)
            kinds.get(gap.why, gaps)[shard].append(gap)
        return cls(gaps, modes, back, gone)

    def forget(self, ranges: Sequence[Stretch]) -> None:
        """Leave out changes of the mode that were rolled back."""
        for rows in self.modes.values():
            rows[:] = [row for row in rows if not any(each.holds(row) for each in ranges)]


def forgotten(
    back: Mapping[Shard, Sequence[Gap]],
    spans: Mapping[Shard, Sequence[Span]],
    before: Mapping[Shard, Known],
) -> list[Stretch]:
    """The events that were rolled back: later in the journal than the fork, and written before that was noticed.

    `spans`: in the order of the epochs; if the clock was set back, a later one may have a smaller number.
    """
    found = []
    for shard, gaps in back.items():
        epochs = [epoch for epoch, _ in before.get(shard, ())]
        epochs += [span.epoch for span in spans.get(shard, ()) if span.epoch not in epochs]
        for gap in gaps:
            if gap.ts is None:
                continue
            if gap.epoch in epochs:
                later = epochs[epochs.index(gap.epoch) + 1 :]
            else:
                later = [epoch for epoch in epochs if epoch > gap.epoch]
            found.append(Stretch(*shard, gap.epoch, first=gap.number, until=gap.ts))
            found += [Stretch(*shard, epoch, until=gap.ts) for epoch in later]
    return found
