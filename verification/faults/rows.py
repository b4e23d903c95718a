"""All rows, in the order of their numbers."""

from __future__ import annotations

import re

from verification.faults import (
    built,
    clocks,
    consumers,
    handlers,
    memory,
    network,
    partial,
    reapers,
    servers,
    surroundings,
    topology,
)
from verification.faults.row import Row

__all__ = ["ROWS", "chosen"]


def _number(row: Row) -> tuple[int, str]:
    match = re.fullmatch(r"F(\d+)(\w*)", row.name)
    assert match is not None, row.name
    return int(match[1]), match[2]


ROWS: dict[str, Row] = {
    row.name: row
    for row in sorted(
        [
            *consumers.ROWS,
            *handlers.ROWS,
            *network.ROWS,
            *servers.ROWS,
            *clocks.ROWS,
            *memory.ROWS,
            *reapers.ROWS,
            *surroundings.ROWS,
            *built.ROWS,
            *partial.ROWS,
            *topology.ROWS,
        ],
        key=_number,
    )
}


def chosen(words: str) -> list[Row]:
    """Find rows by `all`, `commit`, or their names with commas between. Raises `LookupError` for another name."""
    if words == "all":
        return list(ROWS.values())
    if words == "commit":
        return [row for row in ROWS.values() if row.commit]
    names = words.split(",")
    for name in names:
        if name not in ROWS:
            raise LookupError(f"no row is named {name!r}; there are {' '.join(ROWS)}")
    return [ROWS[name] for name in names]
