"""`qworker scripts`: list, load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Note, Output, Table
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]

_COLUMNS: Final = (Column("SCRIPT"), Column("SHA1"), Column("LOADED", wide=True))


@click.group(cls=CommandGroup)
def command() -> None:
    """List the Lua scripts, and load them onto the servers."""


@command.command("ls")
@json_option
@click.pass_obj
def list_scripts(session: Session) -> Iterator[Output]:
    """List the scripts of this version and the servers that have them. Exit code 3 if any is missing.

    In a Cluster it checks every master.
    """
    from qworker.cli.framework.errors import FOUND
    from qworker.daemon.preloading import missing_scripts, script_shas

    shas = script_shas()
    missing = {
        str(node): missing_scripts(session.client, node)
        for node in session.client.factory.masters()
    }
    lacking = {name: [at for at, names in missing.items() if name in names] for name in shas}
    scripts = [
        {"script": name, "sha1": sha, "missing_at": lacking[name]} for name, sha in shas.items()
    ]
    rows = [
        [name, shas[name], Cell(f"missing at {', '.join(at)}", "warn") if at else "yes"]
        for name, at in lacking.items()
    ]
    yield Output({"servers": list(missing), "scripts": scripts}, Table(_COLUMNS, rows))
    if any(missing.values()):
        advice = "a daemon loads missing scripts within a second; or run: qworker scripts load"
        yield Output(text=Note(advice))
        raise click.exceptions.Exit(FOUND)


@command.command("load")
@json_option
@click.pass_obj
def load(session: Session) -> Output:
    """Load the scripts of this version onto every server that lacks one; in a deploy, before the new workers start.

    A daemon also does this within a second, for its own version. Scripts of other versions stay. A server forgets its
    scripts when it restarts, and a replica that takes over never had them: keep a daemon running.
    """
    from qworker.daemon.preloading import load_missing_scripts, script_shas

    every = len(script_shas())
    loaded = {
        str(node): load_missing_scripts(session.client, node)
        for node in session.client.factory.masters()
    }
    return Output(
        {"servers": [{"server": at, "loaded": names} for at, names in loaded.items()]},
        [
            f"{at}: {len(names)} loaded, {every - len(names)} already there"
            for at, names in loaded.items()
        ],
    )
