"""`qworker demo`: see it work."""

from __future__ import annotations

from pathlib import Path

import click

from qworker.cli.verbs import Verb, json_option

__all__ = ["command"]


@click.command(cls=Verb)
@click.argument("path", required=False, type=click.Path(path_type=Path, file_okay=False))
@json_option
def command(path: Path | None, as_json: bool) -> None:
    """Show it at work: a private store, a producer, consumers that crash, and the account at the end.

    Nothing stays behind, unless PATH names a directory for what the demo writes.
    """
    from qworker.demo import run_demo

    raise click.exceptions.Exit(run_demo(path, json=as_json))
