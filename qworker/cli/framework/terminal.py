"""How text gets onto a terminal or into a pipe.

On a terminal rich draws (and honours NO_COLOR and TERM=dumb); a pipe or file gets plain aligned text without any
escape code, every cell whole and never empty, so that `grep` and `awk` work on it. All text passes `safe`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

import click

from qworker.formats import safe, wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Cell",
    "Column",
    "console",
    "for_stderr",
    "is_terminal",
    "least_width",
    "make_table",
    "note",
    "plain",
    "styled",
    "width_of",
    "without_spare",
]

#: Characters that a folded cell keeps on a narrow terminal.
_LEAST: Final = 8
#: Text is not wrapped to fewer characters.
_NARROWEST: Final = 20
_STYLES: Final = {"bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim"}


class Cell(NamedTuple):
    """Text with a tone: "bad", "warn", "good", "dim" or ""."""

    text: str
    tone: str = ""


class Column(NamedTuple):
    """A column of a table. `number`: right-aligned; `wide`: may be folded on a narrow terminal.

    `spare`: left out of a live screen that is too narrow, the highest first; 0 never.
    """

    title: str
    number: bool = False
    wide: bool = False
    spare: int = 0


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """Make a rich console on stdout or stderr as they are now."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal; 80 if it does not say."""
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return max(_NARROWEST, int(given))
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(_NARROWEST, columns) if columns else 80


def note(text: str) -> None:
    """Print one line to stderr, beside the output; on a terminal it is wrapped between words."""
    for line in for_stderr(safe(text)):
        click.echo(line, err=True)


def for_stderr(text: str) -> list[str]:
    """Wrap safe text if stderr is a terminal."""
    return wrapped(text, width_of(sys.stderr)) if sys.stderr.isatty() else [text]


def plain(cell: Cell | str) -> str:
    """Return the text of a cell, safe to print."""
    return safe(cell if isinstance(cell, str) else cell.text)


def styled(cell: Cell | str) -> Text:
    """Make text for rich in the style of the cell's tone; nothing in it is markup."""
    from rich.text import Text

    tone = "" if isinstance(cell, str) else cell.tone
    return Text(plain(cell), style=_STYLES.get(tone, ""))


def make_table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell | str]], *, fold: bool = True
) -> Table:
    """Make a table for rich; without `fold` every row is one line, cut to the terminal's width."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=not (fold and column.wide),
            overflow="fold" if fold and column.wide else "ellipsis",
            # Others give way first: a name cut to nothing says nothing.
            min_width=_LEAST if fold and column.wide else None,
        )
    for row in rows:
        table.add_row(*map(styled, row))
    return table


def without_spare(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int
) -> tuple[list[Column], list[list[Cell | str]]]:
    """Leave out spare columns, one by one, until the table fits into `width` or none is spare."""
    kept = list(range(len(columns)))
    while True:
        left = [columns[at] for at in kept]
        cells = [[row[at] for at in kept] for row in rows]
        if least_width(left, cells) <= width or not any(column.spare for column in left):
            return left, cells
        kept.remove(max(kept, key=lambda at: columns[at].spare))


def least_width(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> int:
    """Return how many characters wide a table is, at least, if nothing is cut."""
    total = 0
    for at, column in enumerate(columns):
        width = max([len(column.title), *(len(plain(row[at])) for row in rows)])
        total += 2 + (min(width, _LEAST) if column.wide else width)
    return total
