"""Play rows again and again, until enough flows have come to their ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from verification.faults.playing import Played
from verification.faults.row import Row

__all__ = ["FLOWS", "flows_of", "has_flows", "until_each"]

#: Kinds of flows that a row of them counts, as figures; a nested one is a group within another flow.
FLOWS: Final = ("chains", "groups", "nested", "races", "gathers", "runs")


def has_flows(row: Row) -> bool:
    """Whether the load of a row has flows of every kind."""
    return row.load.producer == "verification.faults.flow_producer"


def flows_of(played: Sequence[Played]) -> dict[str, int]:
    """Count the flows of each kind that came to their ends, over all rows."""
    counts: Counter[str] = Counter()
    for each in played:
        counts.update({kind: int(each.figures.get(kind, 0)) for kind in FLOWS})
    return {kind: counts[kind] for kind in FLOWS}


def until_each(
    rows: Sequence[Row], number: int, play: Callable[[Row, int], Played]
) -> Iterator[Played]:
    """Play rows until `number` flows of each kind have ended; yields what each play came to.

    `play` takes a row and how many flows of each kind it should start. Each pass over the rows gives each row an equal
    share of what is missing; rows without flows of every kind are played once, and asked for `number` of what they name
    in `each`. It ends early where a whole pass adds none.
    """
    played: list[Played] = []
    again, missing = list(rows), number
    while again:
        flowing = [row for row in again if has_flows(row)]
        share = math.ceil(missing / len(flowing)) if flowing else 0
        for row in again:
            if len(played) >= len(rows) and min(flows_of(played).values()) >= number:
                return
            played.append(play(row, share if has_flows(row) else number if row.each else 0))
            yield played[-1]
        left = number - min(flows_of(played).values())
        again = flowing if 0 < left < missing else []
        missing = left
