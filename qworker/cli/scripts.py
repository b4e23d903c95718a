"""`qworker scripts`: list, load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import Cell, Column, note, print_json, print_line, print_table
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]

_COLUMNS: Final = (Column("SCRIPT"), Column("SHA1"), Column("LOADED", wide=True))


@click.group(cls=Verbs)
def command() -> None:
    """Load the Lua scripts onto the servers, list them."""


@command.command("ls")
@json_option
@click.pass_obj
def list_scripts(session: Session, as_json: bool) -> None:
    """List the scripts of this version and the servers that have them. Exit code 3 if any is missing.

    In a Cluster every master is asked.
    """
    from qworker.cli.failures import FOUND
    from qworker.daemon.preloading import missing_scripts
    from qworker.store.scripts import SCRIPT_NAMES, load_script

    missing = {
        str(node): missing_scripts(session.client, node)
        for node in session.client.factory.masters()
    }
    lacking = {
        name: [at for at, names in missing.items() if name in names] for name in SCRIPT_NAMES
    }
    if as_json:
        scripts = [
            {"script": name, "sha1": load_script(name).sha, "missing_at": lacking[name]}
            for name in SCRIPT_NAMES
        ]
        print_json({"servers": list(missing), "scripts": scripts})
    else:
        print_table(
            _COLUMNS,
            [
                [
                    name,
                    load_script(name).sha,
                    Cell(f"missing at {', '.join(at)}", "warn") if at else "yes",
                ]
                for name, at in lacking.items()
            ],
        )
    if any(missing.values()):
        if not as_json:
            note("a daemon loads what is missing within a second; or run: qworker scripts load")
        raise click.exceptions.Exit(FOUND)


@command.command("load")
@json_option
@click.pass_obj
def load(session: Session, as_json: bool) -> None:
    """Load the scripts of this version onto every server that lacks one: in a deploy, before its workers.

    A daemon does it too, within a second, with the scripts of its own version. Scripts of other versions stay. A server
    forgets all of them when it restarts, and a replica that takes over never had them: keep a daemon running.
    """
    from qworker.daemon.preloading import load_missing_scripts
    from qworker.store.scripts import SCRIPT_NAMES

    loaded = {
        str(node): load_missing_scripts(session.client, node)
        for node in session.client.factory.masters()
    }
    if as_json:
        print_json({"servers": [{"server": at, "loaded": names} for at, names in loaded.items()]})
        return
    for at, names in loaded.items():
        print_line(f"{at}: {len(names)} loaded, {len(SCRIPT_NAMES) - len(names)} were there")
