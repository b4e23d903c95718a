"""Opens the full screen on this terminal, and leaves the terminal as it was."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from qworker.cli.top.full.app import Top
from qworker.cli.top.full.glyphs import glyphs_for
from qworker.monitor.namespace import Namespace
from qworker.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["start"]

#: Seconds after which the server counts as away.
_PATIENCE_S: Final = 2.0


def start(session: Session, every_s: float) -> int:
    """Show the screen until it is left; returns the exit code of the process."""
    session.patience_s, session.watches = _PATIENCE_S, True
    # Notes about the server come before the screen, and lines of the log would tear it.
    client = session.client
    nowhere = os.open(os.devnull, os.O_WRONLY)
    configure_logs("json", "error", fd=nowhere)
    namespace = Namespace(session.namespace, client, session.url, session.server)
    top = Top(
        namespace, every_s=every_s, glyphs=glyphs_for(os.environ, sys.stdout.encoding or "ascii")
    )
    top.run()
    return top.return_code or 0
