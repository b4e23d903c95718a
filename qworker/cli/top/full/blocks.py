"""Blocks of text, as verbs of the command line return them, drawn on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from qworker.cli.framework.output import Block, Fields, Hanging, Heading, Hint, Line, Note, Table
from qworker.cli.framework.terminal import Cell, make_table, plain, styled

__all__ = ["drawn"]

#: Columns that a section of a page needs, about.
_COLUMN: Final = 64


def drawn(blocks: Iterable[str | Block], width: int) -> RenderableType:
    """Draw blocks below each other, on a wide screen their sections side by side; nothing in them is markup."""
    sections: list[list[RenderableType]] = [[]]
    heights = [0]
    for block in blocks:
        if isinstance(block, Heading):
            sections.append([])
            heights.append(0)
        sections[-1] += _parts(block)
        heights[-1] += _height(block)
    columns = min(len(sections), max(1, width // _COLUMN))
    if columns == 1:
        return Group(*(part for section in sections for part in section))
    grid = Grid.grid(padding=(0, 3, 0, 0), expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    grid.add_row(*(Group(*parts) for parts in _shared_out(sections, heights, columns)))
    return grid


def _shared_out(
    sections: list[list[RenderableType]], heights: list[int], columns: int
) -> list[list[RenderableType]]:
    """Put sections into columns, in their order, so that the highest column is about as high as the others."""
    most = max(*heights, -(-sum(heights) // columns))
    while True:
        shared: list[list[RenderableType]] = [[]]
        filled = 0
        for section, height in zip(sections, heights, strict=True):
            if shared[-1] and filled + height > most:
                shared.append([])
                filled = 0
            # The empty line above a title is not for the head of a column.
            shared[-1] += section if shared[-1] or len(section) < 2 else _without_gap(section)
            filled += height
        if len(shared) <= columns:
            return shared + [[] for _ in range(columns - len(shared))]
        most += 1


def _without_gap(section: list[RenderableType]) -> list[RenderableType]:
    first = section[0]
    return section[1:] if isinstance(first, Text) and not first.plain else section


def _height(block: str | Block) -> int:
    """Estimate the lines of a block."""
    match block:
        case Fields():
            return len(block.values)
        case Table():
            return len(block.rows) + 1
        case Heading():
            return 2
    return 1


def _parts(block: str | Block) -> Iterator[RenderableType]:
    match block:
        case str():
            yield Text(plain(block))
        case Line() | Note():
            yield styled(Cell(block.text, getattr(block, "tone", "")))
        case Heading():
            yield Text()
            yield Text(plain(block.text), style="bold")
        case Fields():
            grid = Grid.grid(padding=(0, 2, 0, 0))
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(overflow="fold")
            for name, value in block.values.items():
                grid.add_row(name, styled(value))
            yield grid
        case Hanging():
            grid = Grid.grid()
            grid.add_row(block.label, styled(Cell(block.text, block.tone)))
            yield grid
        case Hint():
            yield Text(f"{block.label}{block.command}   {block.remark}".rstrip())
        case Table():
            yield make_table(block.columns, block.rows) if block.rows else Text(block.empty)
