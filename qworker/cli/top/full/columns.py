"""Columns of a table on the screen: what a cell shows, what sorts it, and how wide it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from qworker.cli.framework.terminal import Cell

if TYPE_CHECKING:
    from qworker.cli.top.full.glyphs import Glyphs

__all__ = ["GAP", "GridColumn", "fitted", "widths_of"]

R = TypeVar("R")

#: Blanks between two columns.
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class GridColumn(Generic[R]):
    """A column for rows of a kind.

    `cell` gets a row and the column's width. `key` sorts, None never; numbers come highest first. `width` is the least;
    `most`: how wide it may grow where there is room. `spare`: left out of a narrow screen, the highest first; 0 never.
    """

    title: str
    cell: Callable[[R, int], Cell | str]
    key: Callable[[R], Any] | None = None
    width: int = 8
    most: int = 0
    number: bool = False
    spare: int = 0


def widths_of(columns: Sequence[GridColumn[Any]], room: int) -> list[tuple[GridColumn[Any], int]]:
    """Choose the columns that fit into `room`, and their widths: none changes with what the rows hold."""
    kept = list(columns)
    while _least(kept) > room and any(column.spare for column in kept):
        kept.remove(max(kept, key=lambda column: column.spare))
    widths = [column.width for column in kept]
    left = room - _least(kept)
    if left < 0:
        # The first column names the row: it keeps what there is.
        widths[0] = max(4, widths[0] + left)
    while left > 0:
        growing = [at for at, column in enumerate(kept) if widths[at] < column.most]
        if not growing:
            break
        share = max(1, left // len(growing))
        for at in growing:
            grown = min(share, kept[at].most - widths[at], left)
            widths[at] += grown
            left -= grown
    return list(zip(kept, widths, strict=True))


def fitted(text: str, width: int, glyphs: Glyphs, *, number: bool = False) -> str:
    """Make text exactly `width` cells wide; what does not fit is cut, and seen to be."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(0, width - 1)) + glyphs.cut if width else ""
    blanks = " " * (width - length)
    return blanks + text if number else text + blanks


def _least(columns: Sequence[GridColumn[Any]]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1) + 2
