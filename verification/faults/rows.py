"""All rows, in the order of their numbers."""

from __future__ import annotations

import re
from typing import Final

from verification.faults import (
    built,
    clocks,
    composition,
    consumers,
    flow,
    handlers,
    keys,
    memory,
    network,
    partial,
    reapers,
    servers,
    slots,
    surroundings,
    topology,
)
from verification.faults.row import Row

__all__ = ["ROWS", "chosen"]


def _number(row: Row) -> tuple[int, int, str]:
    match = re.fullmatch(r"([A-Z])(\d+)(\w*)", row.name)
    assert match is not None, row.name
    return "FCGU".index(match[1]), int(match[2]), match[3]


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
            *flow.ROWS,
            *slots.ROWS,
            *keys.ROWS,
        ],
        key=_number,
    )
}


#: The first letter of the names of many rows.
_LETTERS: Final = {"all": "F", "composition": "C", "flow": "G", "keys": "U"}


def chosen(words: str) -> list[Row]:
    """Find rows by `all`, `composition`, `flow`, `keys`, `commit`, or their names with commas between.

    `all` are those of single messages. Raises `LookupError` for another name.
    """
    if letter := _LETTERS.get(words):
        return [row for row in ROWS.values() if row.name.startswith(letter)]
    if words == "commit":
        return [row for row in ROWS.values() if row.commit]
    names = words.split(",")
    for name in names:
        if name not in ROWS:
            raise LookupError(f"no row is named {name!r}; --list shows them")
    return [ROWS[name] for name in names]
