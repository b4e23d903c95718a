"""`qworker spark convert`: an archive of an earlier version becomes a Delta table."""

from __future__ import annotations

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.output import Output
from qworker.cli.spark.reading import archive_option
from qworker.cli.spark.running import step
from qworker.errors import SparkMissingError
from qworker.formats import count

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark convert --archive lake
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@archive_option(required=True)
@json_option
@click.pass_obj
def command(session: Session, archive: str) -> Output:
    """Convert an archive of an earlier version to a Delta table of this namespace, in place. Needs no Java.

    Stop its archiver first. No file is rewritten; if the command is killed, run it again.
    """
    from qworker.pipeline.jobs.convert import convert
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.session import package_problem

    for package in ("pyarrow", "deltalake"):
        if problem := package_problem(package):
            raise SparkMissingError(f"{problem}; pip install 'qworker-redis[spark]'")
    lake = Lake(archive)
    with step("converting"):
        files = convert(lake, session.namespace)
    return Output(
        {"archive": str(lake.root), "files": files},
        f"{count(files, 'file')} in the Delta table {lake.root}, of namespace {session.namespace}",
    )
