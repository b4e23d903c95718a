"""`qworker daemon`: the reaper as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qworker.cli.flags import flags_of
from qworker.cli.verbs import Verb
from qworker.daemon.options import DaemonOptions

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]


@click.command(cls=Verb)
@flags_of(DaemonOptions)
@click.pass_obj
def command(session: Session, given: dict[str, Any]) -> None:
    """Run the reaper: it moves due and timed-out messages back, fires schedules and serves /metrics.

    Any number may run; one is enough, and `qworker run` carries one too. SIGTERM or Ctrl-C ends it within a
    second. With --durability strict a server that may lose messages or is open to others is refused (exit code 3).
    """
    from qworker.daemon.service import Daemon

    options = session.load(DaemonOptions, given).options
    client_options = session.service_options()
    assert client_options.url is not None  # service_options resolves it
    code = Daemon(client_options.url, client_options.namespace, options).run()
    raise click.exceptions.Exit(code)
