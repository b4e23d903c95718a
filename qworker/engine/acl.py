"""Least rights on the server: the commands and keys that each kind of process needs, as lines of Redis' ACL.

A role is a set of scripts and of raw commands. The header of a script names the roles that call it (`-- ROLES`). The
commands that a script needs are read from its text, since Redis checks the commands in a script against its caller; so
the rules follow the scripts. Redis cannot prevent a role from sending these commands by themselves, or from calling any
loaded script within its keys and commands: docs/security.md describes the consequences.

`EVALSHA` requires read and write access to every declared key. A producer's right to call scripts is therefore in its
own selector, `(+evalsha ~…)`: outside of it the producer may write messages but not read them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from qworker.engine.acl_roles import ROLES, Role
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from qworker.errors import InvalidOptionError
from qworker.wire.keys import (
    QueueKeys,
    queues_key,
)

__all__ = ["LOADING", "Server", "User", "commands_of", "scripts_of", "write_users"]

_CALL: Final = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
_COMMENT: Final = re.compile(r"--[^\n]*")
#: Every queue of the namespace.
_ANY: Final = "*"
#: Who may load scripts: daemon and operator, for all; or every role that calls them.
LOADING: Final = ("daemon", "callers")
_LOADERS: Final = ("daemon", "operator")
#: Sent by any client: its user, its database, which run of the server answers (a client repeats its last settles to
#: another run), and where keys are in a Cluster.
_CONNECTION: Final = (
    "hello", "auth", "ping", "select", "client|setname", "info|server", "cluster|slots", "asking",
)  # fmt: skip
_SETINFO: Final = "client|setinfo"
#: The first version with it; every Valkey has it.
_SETINFO_SINCE: Final = (7, 2)
_WAITAOF: Final = "waitaof"


@dataclass(frozen=True, slots=True)
class Server:
    """The version of the server: it does not start with rules for commands that it does not know."""

    version: tuple[int, int] = (7, 2)

    @classmethod
    def parse(cls, text: str) -> Server:
        """Read a version such as 7.0.15, or valkey-8.1. Raises `InvalidOptionError`."""
        match = re.fullmatch(r"(?:redis-|valkey-)?(\d{1,3})\.(\d{1,3})(?:\.\d{1,5})?", text)
        if match is None or (int(match[1]), int(match[2])) < (7, 0):
            raise InvalidOptionError(
                "--server-version",
                f"{ascii(text)[:40]} is not a supported version",
                "write 7.0 or newer, such as 7.0.15",
            )
        return cls((int(match[1]), int(match[2])))

    def knows(self, command: str) -> bool:
        """Say whether the server has a command."""
        return command not in (_SETINFO, _WAITAOF) or self.version >= _SETINFO_SINCE


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user to write: its roles, for these queues (none: all). `password` None: the user cannot log in yet."""

    name: str
    roles: Sequence[str]
    queues: Sequence[str] = ()
    password: str | None = None


@cache
def commands_of(script: str) -> frozenset[str]:
    """Read the commands that a script may call, its includes among them, out of its text."""
    return frozenset(
        name.lower()
        for name in _CALL.findall(_COMMENT.sub("", load_script(script).source.decode()))
    )


@cache
def scripts_of(role: str) -> tuple[str, ...]:
    """Name the scripts that a role calls; `admin` calls what an operator does."""
    caller = "operator" if role == "admin" else role
    return tuple(name for name in SCRIPT_NAMES if caller in load_script(name).roles)


def write_users(
    users: Sequence[User], namespace: str, *, server: Server, loading: str = LOADING[0]
) -> list[str]:
    """Write a line of an ACL file for each user, with all of its rights.

    `loading` is one of `LOADING`. Raises `InvalidOptionError` for an unknown role, and for queues of a role that is
    for all queues.
    """
    return [_line(user, namespace, server, loading) for user in users]


def _line(user: User, namespace: str, server: Server, loading: str) -> str:
    roles = [_role(name, user.queues) for name in user.roles]
    queues = [
        QueueKeys(namespace, name)
        # Each shard has its own keys.
        for queue in (user.queues or (_ANY,))
        for name in ((queue,) if queue == _ANY else (queue, f"{queue}/[0-9]*"))
    ]
    patterns: list[str] = []
    scripted: list[str] = []
    selectors: list[str] = []
    channels: list[str] = []
    index = queues_key(namespace)
    commands = {*_CONNECTION, _SETINFO}
    extra: list[str] = []
    for name, role in zip(user.roles, roles, strict=True):
        for keys in queues:
            patterns += (f"~{key}" for key in role.keys(keys))
            patterns += (f"%W~{key}" for key in role.writes(keys))
            patterns += (f"%R~{key}" for key in role.reads(keys))
            channels += (f"&{key}" for key in role.channels(keys))
            if role.writes(keys):
                scripted += (f"~{key}" for key in (*role.writes(keys), *role.keys(keys)))
        if role.announces:
            selectors.append(f"(+hset %W~{index})")
        if role.lists:
            patterns.append(f"%R~{index}")
            selectors.append(f"(+evalsha ~{index})")
        shared = [*role.shared(namespace)]
        patterns += shared
        # A full server takes notes by a script, and a call of it needs both rights to its key.
        notes = [pattern.removeprefix("%W") for pattern in shared if pattern.startswith("%W~")]
        if notes:
            selectors.append(f"(+evalsha {' '.join(notes)})")
        if role.writes(queues[0]):
            scripted += shared
        scripts = scripts_of(name)
        commands.update(role.raw, *(commands_of(script) for script in scripts))
        if scripts:
            commands.update(("time", "script|exists"))
            if not role.writes(queues[0]):
                commands.add("evalsha")
            if loading == "callers" or name in _LOADERS:
                commands.add("script|load")
        extra += role.extra
    allowed = sorted(f"+{command}" for command in commands if server.knows(command))
    # Exclusions (admin) come first: the commands of other roles add to them.
    words = ["user", user.name, "reset", "on", *_password(user.password)]
    words += [*dict.fromkeys(patterns), *dict.fromkeys(channels), *extra, *allowed]
    words += dict.fromkeys(selectors)
    if scripted:
        words.append(f"(+evalsha {' '.join(dict.fromkeys(scripted))})")
    return " ".join(words)


def _role(name: str, queues: Sequence[str]) -> Role:
    role = ROLES.get(name)
    if role is None:
        raise InvalidOptionError(
            "--role", f"{ascii(name)[:40]} is not a role", f"roles are {', '.join(ROLES)}"
        )
    if queues and role.every_queue:
        raise InvalidOptionError(
            "--queue",
            f"is given for the role {name}",
            "this role is for every queue of the namespace",
        )
    return role


def _password(password: str | None) -> list[str]:
    return [] if password is None else [f"#{hashlib.sha256(password.encode()).hexdigest()}"]
