"""`qworker run`: the consumers of an app."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.flags import flags_of
from qworker.cli.screen import note
from qworker.cli.verbs import Verb
from qworker.consumer.options import RunOptions

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]


@click.command(cls=Verb)
@click.argument("app", metavar="MODULE[:ATTR]")
@flags_of(RunOptions)
@click.pass_obj
def command(session: Session, app: str, given: dict[str, Any]) -> None:
    """Run the consumers of an app: MODULE holds it, as ATTR or as its only QWorker.

    A supervisor keeps child processes at work, and carries a reaper and /metrics. SIGTERM or Ctrl-C ends it: what
    runs may end within --grace, what had not started goes back uncounted. Exit code 70: the watchdog ended it.
    """
    from qworker.consumer.starting import STOPPING, Starter
    from qworker.telemetry.options import LogOptions

    loaded = session.load(RunOptions, given)
    session.pass_keys_on()
    session.pass_give_up_on()
    client_options = session.service_options()
    for line in loaded.options.notes:
        note(f"note: {line}")
    assert client_options.url is not None  # service_options resolves it
    logs = session.load(LogOptions).options
    starter = Starter(app, client_options.url, loaded.options, logs)
    # Until somebody can give back what the children have in hand by then.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    starter.start_early()
    # Half of the package: the children are on their way meanwhile, and bad input has been told.
    from qworker.cli.consume import consume

    raise click.exceptions.Exit(consume(app, client_options.url, loaded.options, logs, starter))
