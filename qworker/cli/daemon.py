"""`qworker daemon`: the reaper as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand
from qworker.cli.framework.flags import flags_of
from qworker.cli.framework.quick_imports import uncollected
from qworker.daemon.options import DaemonOptions

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]


@click.command(cls=VerbCommand)
@flags_of(DaemonOptions)
@click.pass_obj
def command(session: Session, given: dict[str, Any]) -> None:
    """Run the reaper: it requeues due and timed-out messages, fires schedules and serves /metrics.

    One is enough; any number may run, and `qworker run` includes one. SIGTERM or Ctrl-C stops it within a second.
    With --durability strict, a server that may lose messages or is open to others is refused (exit code 3).
    """
    options = session.settings.load(DaemonOptions, given).options
    session.settings.set_up_logs(service=True)
    with uncollected():
        from qworker.service.daemon import Daemon

    client_options = session.service_options()
    assert client_options.url is not None  # service_options resolves it
    code = Daemon(client_options.url, client_options.namespace, options).run()
    raise click.exceptions.Exit(code)
