"""`qworker web`: the dashboard in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand
from qworker.cli.framework.flags import flags_of
from qworker.cli.framework.terminal import note
from qworker.web.options import WebOptions

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]


@click.command(cls=VerbCommand)
@flags_of(WebOptions)
@click.pass_obj
def command(session: Session, given: dict[str, Any]) -> None:
    """Serve the dashboard: queues, problems, health, and the actions of operators.

    Listens on loopback and prints a link that admits one browser; when it is used, the next link is printed. On other
    addresses it needs --authorize: a function that returns the user of a request and their rights. SIGTERM or Ctrl-C
    stops it.
    """
    from qworker.web.server import check_options, serve

    options = session.settings.load(WebOptions, given).options
    check_options(options)
    session.settings.set_up_logs(service=True)
    settings = session.settings
    serve(options, session.url, session.server, session.namespace, settings.keyring, note)
