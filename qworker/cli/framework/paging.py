"""Reading in pages: all of them, or with --cursor one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import stacked
from qworker.cli.framework.errors import FAILED
from qworker.cli.framework.output import Note, Output
from qworker.cli.framework.parameters import NumberRange
from qworker.cli.framework.terminal import note

if TYPE_CHECKING:
    from qworker.client.inspect.pages import Page

__all__ = ["cut_notes", "limit_option", "page_options", "print_pages"]

limit_option: Final = click.option(
    "--limit",
    "-n",
    type=NumberRange(1, 1000),
    default=100,
    help="Maximum number to list of each queue, oldest first. [default: 100]",
)
page_options: Final = stacked(
    click.option(
        "--cursor", help="Print one page from here on; 0 is the beginning. [default: all pages]"
    ),
    click.option(
        "--count",
        type=NumberRange(1, 1000),
        default=100,
        help="Approximate page size. [default: 100]",
    ),
)


def cut_notes(queues: Sequence[str], limit: int) -> Iterator[Note]:
    """Tell of queues that have more than `limit_option` lets a listing show."""
    if queues:
        yield Note(f"only the oldest {limit:,} are listed of {', '.join(queues)} (--limit)")


def print_pages(
    cursor: str | None,
    read: Callable[[str], Page[Any]],
    output: Callable[[Page[Any]], Output],
) -> Iterator[Output]:
    """Print every page, or with a cursor its page and the next cursor; ends with 1 if anything could not be read."""
    from qworker.client.inspect.pages import END

    position, complete = cursor or END, True
    while True:
        page = read(position)
        position = page.cursor
        yield output(page)
        for unread in page.unread:
            complete = False
            note(f"not read: {unread}")
        if position == END or cursor is not None:
            break
    if cursor is not None:
        text = f"next: --cursor {position}" if position != END else "that was the last page"
        yield Output(text=Note(text))
    if not complete:
        raise click.exceptions.Exit(FAILED)
