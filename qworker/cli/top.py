"""`qworker top`: queues, workers and running handlers, live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from qworker.cli.screen import console, print_json
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]


@click.command(cls=Verb)
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option(
    "--every",
    default="1s",
    metavar="DURATION",
    help="Look anew so often, from 200ms on. [default: 1s]",
)
@json_option
@click.pass_obj
def command(session: Session, once: bool, every: str, as_json: bool) -> None:
    """Watch queues, workers and running handlers; `q` or Ctrl-C ends it.

    Rates are per second, over the last few looks. Into a pipe, and with --once or --json, there is one picture, taken
    over one interval.
    """
    from qworker.cli.live import watch
    from qworker.cli.pictures import Album, picture_document, print_picture
    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms

    text = DurationKind("", minimum_ms=200, maximum_ms=60_000).parse(every, "--every")
    every_s = duration_ms(text, "--every") / 1000
    session.patience_s = every_s
    album = Album(session)
    # rich draws nothing on a dumb terminal: it would stay empty.
    if as_json or once or not sys.stdout.isatty() or console().is_dumb_terminal:
        picture = album.take_pair(every_s)
        if as_json:
            print_json(picture_document(picture))
        else:
            print_picture(picture)
    else:
        # What is to be said about the server is said before the screen is drawn.
        session.url  # noqa: B018
        watch(album, every_s)
