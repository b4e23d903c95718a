"""`qworker demo`: see it work."""

from __future__ import annotations

from pathlib import Path

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import wants_json
from qworker.cli.framework.parameters import NumberRange

__all__ = ["command"]


@click.command(cls=VerbCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--procs", type=NumberRange(1, 64), help="Worker processes. [default: one per core]")
@click.option("--keep", is_flag=True, help="Keep the store running until Ctrl-C, to inspect it.")
@click.option(
    "--spark",
    "history",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Journal the run; archive, report on and audit it with Spark, in a new directory.",
)
@json_option
def command(path: Path | None, procs: int | None, keep: bool, history: Path | None) -> None:
    """Index the Python code below PATH through a queue, kill a worker midway, and print a summary.

    PATH defaults to the standard library. The demo runs its own store and leaves nothing behind. Exit code 1 if a
    message was lost.
    """
    from qworker.demo import run_demo

    raise click.exceptions.Exit(
        run_demo(path, json=wants_json(), procs=procs, keep=keep, history=history)
    )
