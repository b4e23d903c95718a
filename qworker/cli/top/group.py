"""`qworker top`: queues, workers, running handlers and dead letters, live."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import Output, wants_json
from qworker.cli.framework.terminal import console, is_terminal

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]


@click.command(cls=VerbCommand)
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--plain",
    is_flag=True,
    help="Show figures only: no tables to choose from, no keys.",
)
@click.option(
    "--every",
    default="1s",
    metavar="DURATION",
    help="Refresh interval, at least 200ms. [default: 1s]",
)
@json_option
@click.pass_obj
def command(session: Session, once: bool, plain: bool, every: str) -> Output | None:
    """Watch queues, workers, handlers and dead letters, and act on them; `q` exits, `?` lists the keys.

    The full screen needs the extra `top`; without it, or with --plain, it only shows figures. Rates are per second,
    over a few seconds. In a pipe, or with --once or --json, it prints one snapshot, with rates over one interval.
    """
    from qworker.cli.top.sampler import TopSampler
    from qworker.cli.top.screen import watch
    from qworker.cli.top.tables import snapshot_document, snapshot_text
    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms

    text = DurationKind("", minimum_ms=200, maximum_ms=60_000).parse(every, "--every")
    every_s = duration_ms(text, "--every") / 1000
    # rich draws nothing on a dumb terminal.
    if once or wants_json() or not is_terminal() or console().is_dumb_terminal:
        session.patience_s = every_s
        snapshot = TopSampler(session).take_pair(every_s)
        return Output(snapshot_document(snapshot), snapshot_text(snapshot))
    installed = importlib.util.find_spec("textual") is not None
    if installed and not plain and sys.stdin.isatty():
        from qworker.cli.top.full.start import start

        click.get_current_context().exit(start(session, every_s))
    session.patience_s = every_s
    sampler = TopSampler(session)
    # Notes about the server come before the screen.
    session.url  # noqa: B018
    watch(sampler, every_s, "" if installed else "full screen: pip install 'qworker-redis[top]'")
    return None
