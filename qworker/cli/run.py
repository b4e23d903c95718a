"""`qworker run`: the consumers of an app."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand
from qworker.cli.framework.flags import flags_of
from qworker.cli.framework.quick_imports import uncollected
from qworker.cli.framework.terminal import note
from qworker.consumer.options import RunOptions

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]


@click.command(cls=VerbCommand)
@click.argument("app", metavar="MODULE[:ATTR]", required=False)
@flags_of(RunOptions)
@click.pass_obj
def command(session: Session, app: str | None, given: dict[str, Any]) -> None:
    """Run the consumers of an app: MODULE holds it, as ATTR or as its only QWorker.

    A supervisor runs child processes, a reaper and /metrics. SIGTERM or Ctrl-C stops it: running handlers have --grace
    to finish, and messages that have not started are returned uncounted. Exit code 70: the watchdog ended it.
    """
    if app is None:
        raise click.UsageError(
            "missing argument 'MODULE[:ATTR]': name the module of your app, such as qworker run jobs for "
            "jobs.py; qworker demo needs none",
            click.get_current_context(),
        )
    from qworker.consumer.supervisor.processes.spawn import STOPPING, Starter
    from qworker.telemetry.options import LogOptions

    loaded = session.settings.load(RunOptions, given)
    session.settings.export()
    logs = session.settings.load(LogOptions).options
    session.settings.take_url_of(app, logs)
    client_options = session.service_options()
    for line in loaded.options.notes:
        note(f"note: {line}")
    assert client_options.url is not None  # service_options resolves it
    starter = Starter(app, client_options.url, loaded.options, logs)
    # Until the worker runs, which returns what the children have received by then.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    starter.start_early()
    # Most of the package, a Redis client and the logs are imported while the children start; bad input has been refused
    # by now.
    session.settings.set_up_logs(service=True)
    with uncollected():
        from qworker.service.worker import consume

    raise click.exceptions.Exit(consume(starter, session.settings.server_from))
