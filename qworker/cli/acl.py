"""`qworker acl`: users of the server with least rights."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import note, print_line
from qworker.cli.verbs import Verb
from qworker.store.acl import LOADING, ROLES, Server, User, write_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.cli.session import Session

__all__ = ["command"]

_ROLES: Final = "; ".join(f"{name}: {role.about}" for name, role in ROLES.items())


@click.command(cls=Verb, epilog=f"Roles. {_ROLES}.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE[+ROLE]",
    help="A user for this role, or for several at once (consumer+producer). [default: one for each]",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Producers, consumers and metrics are for these queues. [default: all]",
)
@click.option(
    "--server-version",
    metavar="VERSION",
    help="Write for this version of Redis or Valkey. [default: that of the server, which is asked]",
)
@click.option(
    "--prefix", default="qworker-", show_default=True, help="First part of the users' names."
)
@click.option(
    "--passwords",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a password for each user and write them to this new file, which only you can read.",
)
@click.option(
    "--loading",
    type=click.Choice(LOADING),
    default=LOADING[0],
    show_default=True,
    help="Who may load scripts: daemon and operator, for all; or everybody who calls them.",
)
@click.option(
    "--close-default", is_flag=True, help="Nobody may connect without a name: user default off."
)
@click.option(
    "--commands", "as_commands", is_flag=True, help="Write ACL SETUSER for redis-cli, not a file."
)
@click.pass_obj
def command(
    session: Session,
    roles: Sequence[str],
    queues: Sequence[str],
    server_version: str | None,
    prefix: str,
    passwords: Path | None,
    loading: str,
    close_default: bool,
    as_commands: bool,
) -> None:
    """Write users with the rights that each kind of process needs, for the server's aclfile.

    The rights are read from the scripts. Changes nothing on the server. Without --passwords nobody can be the users
    until they are given one: ACL SETUSER NAME '>PASSWORD'. Note that qworker run carries a reaper: its user needs
    consumer+daemon, or consumer with --no-reaper, and producer where its handlers send.
    """
    from qworker.wire.names import check_queue

    checked = [check_queue(each, "--queue") for each in queues]
    server = Server.parse(server_version) if server_version else _ask(session)
    users = [
        User(
            name=prefix + "-".join(named),
            roles=named,
            # Of all roles some are for every queue; who names a role and queues has to know.
            queues=checked if roles or not ROLES[named[0]].every_queue else (),
        )
        for named in (given.split("+") for given in roles or ROLES)
    ]
    drawn = {each.name: secrets.token_urlsafe(32) for each in users} if passwords else {}
    users = [replace(each, password=drawn.get(each.name)) for each in users]
    lines = write_users(users, session.namespace, server=server, loading=loading)
    if close_default:
        lines.append("user default reset off")
    if passwords is not None:
        _write(passwords, drawn)
        note(f"passwords are in {passwords}")
    for line in lines:
        print_line(_as_command(line) if as_commands else line)


def _ask(session: Session) -> Server:
    hello = session.ask("HELLO")
    fields = dict(zip(hello[::2], hello[1::2], strict=True))
    return Server.parse(fields[b"version"].decode())


def _as_command(line: str) -> str:
    # Quoted for redis-cli and for a shell: patterns have braces, selectors brackets.
    words, bracket, selector = line.removeprefix("user ").partition(" (")
    quoted = " ".join(f"'{each}'" for each in words.split(" "))
    return f"ACL SETUSER {quoted}" + (f" '({selector}'" if bracket else "")


def _write(path: Path, passwords: dict[str, str]) -> None:
    """Write a file that was not there before and that nobody else can read."""
    from qworker.errors import InvalidOptionError

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidOptionError(
            "--passwords", f"cannot write {str(path)!r}: {error.strerror}", "name a new file"
        ) from error
    with open(descriptor, "w", encoding="ascii") as file:
        file.writelines(f'{name} = "{password}"\n' for name, password in passwords.items())
