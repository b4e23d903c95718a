"""`qworker acl`: ACL users with least privilege."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand
from qworker.cli.framework.output import Output
from qworker.cli.framework.terminal import note
from qworker.client.namespace.acl import LOADING, ROLES, Server, User, write_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.cli.framework.context import Session

__all__ = ["command"]

_ROLES: Final = "; ".join(f"{name}: {role.about}" for name, role in ROLES.items())


@click.command(cls=VerbCommand, epilog=f"Roles. {_ROLES}.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE[+ROLE]",
    help="Role of a user, or several (consumer+producer); repeatable. [default: a user for each role]",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Restrict producers, consumers and metrics to this queue; repeatable. [default: all]",
)
@click.option(
    "--server-version",
    metavar="VERSION",
    help="Version of Redis or Valkey to write for. [default: that of the server]",
)
@click.option(
    "--prefix", default="qworker-", show_default=True, help="First part of the names of users."
)
@click.option(
    "--passwords",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Generate a password for each user, and write them to this new file, readable by you alone.",
)
@click.option(
    "--loading",
    type=click.Choice(LOADING),
    default=LOADING[0],
    show_default=True,
    help="Roles that may load scripts: daemon and operator only, or all that call scripts.",
)
@click.option(
    "--close-default",
    is_flag=True,
    help="Disable the default user, so that clients must authenticate.",
)
@click.option(
    "--commands",
    "as_commands",
    is_flag=True,
    help="Write ACL SETUSER commands for redis-cli instead of an aclfile.",
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
) -> Output:
    """Write users with the rights that each kind of process needs, for the server's aclfile.

    The rights are read from the scripts. Nothing is changed on the server. Without --passwords the users cannot log in
    until you set one: ACL SETUSER NAME '>PASSWORD'. qworker run includes a reaper: its user needs consumer+daemon, or
    consumer with --no-reaper, and producer if its handlers send.
    """
    from qworker.wire.names import check_queue

    checked = [check_queue(name, "--queue") for name in queues]
    server = Server.parse(server_version) if server_version else _ask(session)
    users = [
        User(
            name=prefix + "-".join(named),
            roles=named,
            # Some roles serve every queue: they are restricted only if both role and queue are named.
            queues=checked if roles or not ROLES[named[0]].every_queue else (),
        )
        for named in (given.split("+") for given in roles or ROLES)
    ]
    drawn = {user.name: secrets.token_urlsafe(32) for user in users} if passwords else {}
    users = [replace(user, password=drawn.get(user.name)) for user in users]
    lines = write_users(users, session.namespace, server=server, loading=loading)
    if close_default:
        lines.append("user default reset off")
    if passwords is not None:
        _write(passwords, drawn)
        note(f"wrote the passwords to {passwords}")
    return Output(text=map(_as_command, lines) if as_commands else lines)


def _ask(session: Session) -> Server:
    hello = session.ask("HELLO")
    fields = dict(zip(hello[::2], hello[1::2], strict=True))
    return Server.parse(fields[b"version"].decode())


def _as_command(line: str) -> str:
    # Quoted for redis-cli and the shell, as patterns have braces and selectors brackets; each selector is one word.
    words, *selectors = line.removeprefix("user ").split(" (")
    parts = [*words.split(" "), *(f"({selector}" for selector in selectors)]
    return "ACL SETUSER " + " ".join(f"'{part}'" for part in parts)


def _write(path: Path, passwords: dict[str, str]) -> None:
    """Write a new file that only its owner can read."""
    from qworker.errors import InvalidOptionError

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidOptionError(
            "--passwords", f"cannot write {str(path)!r}: {error.strerror}", "name a new file"
        ) from error
    with open(descriptor, "w", encoding="ascii") as file:
        file.writelines(f'{name} = "{password}"\n' for name, password in passwords.items())
