"""`qworker top`: queues, workers and running handlers, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qworker.cli.framework.commands import Verb, json_option
from qworker.cli.framework.output import Output, wants_json
from qworker.cli.framework.terminal import console, is_terminal

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]


@click.command(cls=Verb)
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--every",
    default="1s",
    metavar="DURATION",
    help="Refresh interval, at least 200ms. [default: 1s]",
)
@json_option
@click.pass_obj
def command(session: Session, once: bool, every: str) -> Output | None:
    """Watch queues, workers and running handlers; `q` or Ctrl-C exits.

    Rates are per second, over the last few intervals. In a pipe, or with --once or --json, it prints one snapshot, with
    rates over one interval.
    """
    from qworker.cli.top.sampler import Sampler, snapshot_document, snapshot_text
    from qworker.cli.top.screen import watch
    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms

    text = DurationKind("", minimum_ms=200, maximum_ms=60_000).parse(every, "--every")
    every_s = duration_ms(text, "--every") / 1000
    session.patience_s = every_s
    sampler = Sampler(session)
    # rich draws nothing on a dumb terminal.
    if once or wants_json() or not is_terminal() or console().is_dumb_terminal:
        snapshot = sampler.take_pair(every_s)
        return Output(snapshot_document(snapshot), snapshot_text(snapshot))
    # Notes about the server come before the screen.
    session.url  # noqa: B018
    watch(sampler, every_s)
    return None
