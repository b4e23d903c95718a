"""What verbs print: tables and fields for people, one JSON document for programs, notes on stderr.

On a terminal rich draws (and honours NO_COLOR and TERM=dumb); into a pipe or file goes plain aligned text without
any escape code, every cell in full and never empty, so that `grep` and `awk` work on it. All text passes `safe`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import click

from qworker.cli.formats import safe, wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Cell",
    "Column",
    "console",
    "for_stderr",
    "make_table",
    "note",
    "print_fields",
    "print_hanging",
    "print_heading",
    "print_hint",
    "print_json",
    "print_line",
    "print_table",
    "styled",
    "without_spare",
]

#: Columns that a folded cell keeps on a narrow terminal.
_LEAST: Final = 8
#: Text is not wrapped to fewer characters.
_NARROWEST: Final = 20
_STYLES: Final = {"bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim"}


class Cell(NamedTuple):
    """Text with a tone: "bad", "warn", "good", "dim" or ""."""

    text: str
    tone: str = ""


class Column(NamedTuple):
    """A column of a table. `number`: right-aligned; `wide`: may be folded where the terminal is narrow.

    `spare`: left out of a live screen that is too narrow, the highest first; 0 never.
    """

    title: str
    number: bool = False
    wide: bool = False
    spare: int = 0


def print_json(document: Any) -> None:
    """Print one JSON document. Everything beyond ASCII is escaped, control characters included."""
    click.echo(json.dumps(document, indent=2))


def print_line(text: str = "", tone: str = "") -> None:
    """Print one line of text."""
    if _is_terminal() and tone:
        console().print(styled(Cell(text, tone)), soft_wrap=True)
    else:
        click.echo(safe(text))


def print_hanging(label: str, text: str, tone: str = "") -> None:
    """Print a label and text; on a terminal the text is wrapped and stays to the right of its label."""
    if not _is_terminal():
        click.echo(safe(f"{label}{text}"))
        return
    screen = console()
    room = max(20, screen.width - len(label) - 1)
    for at, line in enumerate(wrapped(safe(text), room)):
        start = " " * len(label) if at else label
        screen.print(styled(Cell(start + line, tone)), soft_wrap=True)


def print_heading(text: str) -> None:
    """Print the title of a section, with an empty line before it."""
    click.echo()
    if _is_terminal():
        console().print(safe(text), style="bold", highlight=False, markup=False)
    else:
        click.echo(safe(text))


def print_hint(label: str, command: str, remark: str = "") -> None:
    """Print a command to copy: in one line with its label, on a terminal too narrow for that in a line of its own."""
    line = f"{label}{command}   {remark}".rstrip()
    width = _width(sys.stdout) if _is_terminal() else None
    if width is None or len(line) <= width:
        print_line(line)
        return
    if len(label) + len(command) <= width:
        print_line(label + command)
    else:
        print_line(label.rstrip())
        print_line(command)
    if remark:
        print_hanging(" " * len(label), remark)


def note(text: str) -> None:
    """Print one line to stderr, beside what the verb prints; a terminal gets it wrapped between words."""
    for line in for_stderr(safe(text)):
        click.echo(line, err=True)


def for_stderr(text: str) -> list[str]:
    """Wrap safe text where stderr is a terminal."""
    return wrapped(text, _width(sys.stderr)) if sys.stderr.isatty() else [text]


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell | str]]) -> None:
    """Print a table with its header; the caller says something else where there are no rows.

    On a terminal too narrow for it, it is printed as into a pipe: whole, its lines broken by the terminal.
    """
    rows = list(rows)
    titles: list[Sequence[Cell | str]] = [[column.title.replace(" ", "-") for column in columns]]
    lines = [[_text(cell) or "-" for cell in row] for row in [*titles, *rows]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    if _is_terminal():
        screen = console()
        if _least_width(columns, rows) <= screen.width:
            screen.print(make_table(columns, rows))
            return
    for line in lines:
        cells = (
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def print_fields(fields: Mapping[str, Cell | str]) -> None:
    """Print names and values, one per line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if _is_terminal():
            console().print(
                f"{name.ljust(width)}  ", styled(value), sep="", soft_wrap=True, highlight=False
            )
        else:
            click.echo(f"{name.ljust(width)}  {_text(value) or '-'}")


def make_table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell | str]], *, fold: bool = True
) -> Table:
    """Make a table for rich; without `fold` every row is one line, cut where the terminal is narrow."""
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
        if _least_width(left, cells) <= width or not any(column.spare for column in left):
            return left, cells
        kept.remove(max(kept, key=lambda at: columns[at].spare))


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> int:
    """How many characters wide a table is, at least, if nothing is cut."""
    total = 0
    for at, column in enumerate(columns):
        width = max([len(column.title), *(len(_text(row[at])) for row in rows)])
        total += 2 + (min(width, _LEAST) if column.wide else width)
    return total


def styled(cell: Cell | str) -> Text:
    """Make text for rich in the style of the cell's tone; nothing in it is markup."""
    from rich.text import Text

    if isinstance(cell, str):
        return Text(safe(cell))
    return Text(safe(cell.text), style=_STYLES.get(cell.tone, ""))


def console(*, stderr: bool = False) -> Console:
    """Make a rich console on stdout or stderr as they are now."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _width(stream: TextIO) -> int:
    """The columns of a terminal; 80 where it does not say."""
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return max(_NARROWEST, int(given))
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(_NARROWEST, columns) if columns else 80


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _text(cell: Cell | str) -> str:
    return safe(cell if isinstance(cell, str) else cell.text)
