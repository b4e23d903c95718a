"""All rows, in the order of their numbers."""

from __future__ import annotations

import re

from verification.faults import (
    built,
    clocks,
    composition,
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


def _number(row: Row) -> tuple[bool, int, str]:
    match = re.fullmatch(r"([A-Z])(\d+)(\w*)", row.name)
    assert match is not None, row.name
    return match[1] != "F", int(match[2]), match[3]


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
            *composition.ROWS,
        ],
        key=_number,
    )
}


def chosen(words: str) -> list[Row]:
    """Find rows by `all`, `composition`, `commit`, or their names with commas between.

    `all` are those of single messages. Raises `LookupError` for another name.
    """
    if words in ("all", "composition"):
        return [
            row for row in ROWS.values() if row.name.startswith("C") == (words == "composition")
        ]
    if words == "commit":
        return [row for row in ROWS.values() if row.commit]
    names = words.split(",")
    for name in names:
        if name not in ROWS:
            raise LookupError(f"no row is named {name!r}; there are {' '.join(ROWS)}")
    return [ROWS[name] for name in names]
