"""The result of a command: a document for programs, and text. `--json` prints the document instead of the text.

    return Output({"queue": queue, "paused": True}, f"{queue}: paused")

Text is made of blocks: strings (a line each), tables, fields, headings, hints and notes. A generator of blocks is
printed as it goes, and not at all with --json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import click

from qworker.cli.framework.terminal import (
    Cell,
    Column,
    console,
    is_terminal,
    least_width,
    make_table,
    note,
    plain,
    styled,
    width_of,
)
from qworker.formats import safe, wrapped

__all__ = [
    "Block",
    "Fields",
    "Hanging",
    "Heading",
    "Hint",
    "Line",
    "Note",
    "Output",
    "Raw",
    "Table",
    "printing",
    "wants_json",
]


class Block(Protocol):
    """A part of a text, which prints itself."""

    def print(self) -> None:
        """Print it to stdout, or to stderr if it is a note."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a verb.

    `document` is JSON, or a function that makes it; None if programs get nothing.
    """

    document: Any = None
    text: str | Block | Iterable[str | Block] = ()

    def print(self, *, as_json: bool) -> None:
        """Print the document or the text."""
        if not as_json:
            _print(self.text)
        elif self.document is not None:
            document = self.document() if callable(self.document) else self.document
            # Everything beyond ASCII is escaped, control characters included.
            click.echo(json.dumps(document, indent=2))


def wants_json() -> bool:
    """Whether this command line has --json, for a verb that does something else then."""
    return bool(click.get_current_context().params.get("as_json"))


def printing(verb: Callable[..., Any]) -> Callable[..., None]:
    """Print the result of a verb: an `Output`, or several that it yields before it may raise."""

    @wraps(verb)
    def run(*args: Any, as_json: bool = False, **kwargs: Any) -> None:
        returned: Output | Iterator[Output] | None = verb(*args, **kwargs)
        outputs = [returned] if isinstance(returned, Output) else returned or ()
        for output in outputs:
            output.print(as_json=as_json)

    return run


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text."""

    text: str = ""
    tone: str = ""

    def print(self) -> None:
        """Print it in its tone."""
        if is_terminal() and self.tone:
            console().print(styled(Cell(self.text, self.tone)), soft_wrap=True)
        else:
            click.echo(safe(self.text))


@dataclass(frozen=True, slots=True)
class Raw:
    """Text for a program: a script, comma-separated values. Nothing in it is escaped."""

    text: str

    def print(self) -> None:
        """Print it as it is."""
        click.echo(self.text, nl=False)


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section."""

    text: str

    def print(self) -> None:
        """Print it with an empty line before it."""
        click.echo()
        if is_terminal():
            console().print(safe(self.text), style="bold", highlight=False, markup=False)
        else:
            click.echo(safe(self.text))


@dataclass(frozen=True, slots=True)
class Hanging:
    """A label and text, which stays to the right of its label on a terminal."""

    label: str
    text: str
    tone: str = ""

    def print(self) -> None:
        """Print it, wrapped on a terminal."""
        if not is_terminal():
            click.echo(safe(f"{self.label}{self.text}"))
            return
        screen = console()
        room = max(20, screen.width - len(self.label) - 1)
        for number, line in enumerate(wrapped(safe(self.text), room)):
            start = " " * len(self.label) if number else self.label
            screen.print(styled(Cell(start + line, self.tone)), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Hint:
    """A command to copy."""

    label: str
    command: str
    remark: str = ""

    def print(self) -> None:
        """Print it on the line of its label, on a terminal too narrow for that on its own line."""
        line = f"{self.label}{self.command}   {self.remark}".rstrip()
        width = width_of(sys.stdout) if is_terminal() else None
        if width is None or len(line) <= width:
            _print(line)
            return
        if len(self.label) + len(self.command) <= width:
            _print(self.label + self.command)
        else:
            _print([self.label.rstrip(), self.command])
        if self.remark:
            Hanging(" " * len(self.label), self.remark).print()


@dataclass(frozen=True, slots=True)
class Note:
    """A remark beside the output, on stderr."""

    text: str

    def print(self) -> None:
        """Print it."""
        note(self.text)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, one per line."""

    values: Mapping[str, Cell | str]

    def print(self) -> None:
        """Print them, the values below each other."""
        width = max(map(len, self.values), default=0)
        for name, value in self.values.items():
            if is_terminal():
                label = f"{name.ljust(width)}  "
                console().print(label, styled(value), sep="", soft_wrap=True, highlight=False)
            else:
                click.echo(f"{name.ljust(width)}  {plain(value) or '-'}")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a header; `empty` is noted in place of a table without rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    empty: str = ""

    def print(self) -> None:
        """Print it; on a terminal too narrow for it as into a pipe: whole, its lines broken by the terminal."""
        if not self.rows and self.empty:
            note(self.empty)
            return
        if is_terminal():
            screen = console()
            if least_width(self.columns, self.rows) <= screen.width:
                screen.print(make_table(self.columns, self.rows))
                return
        titles: list[Sequence[Cell | str]] = [[c.title.replace(" ", "-") for c in self.columns]]
        lines = [[plain(cell) or "-" for cell in row] for row in [*titles, *self.rows]]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for line in lines:
            cells = (
                text.rjust(width) if column.number else text.ljust(width)
                for text, width, column in zip(line, widths, self.columns, strict=True)
            )
            click.echo("  ".join(cells).rstrip())


def _print(text: str | Block | Iterable[str | Block]) -> None:
    if isinstance(text, str):
        Line(text).print()
    elif isinstance(text, Iterable):
        for block in text:
            _print(block)
    else:
        text.print()
