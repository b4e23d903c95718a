"""Servers that allow only the roles of `qworker acl`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from qworker.engine.acl import LOADING, Server, User, write_users
from qworker.engine.acl_roles import ROLES
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from tests import servers

__all__ = ["GuardedServer", "guarded"]

#: The one whom the tests themselves are: it looks on and prepares.
TESTER = "tester"


@dataclass
class GuardedServer:
    """A server with a user for each role; `namespace` is the one that they are for."""

    server: servers.Server
    namespace: str
    passwords: dict[str, str]

    def url(self, role: str) -> str:
        """The URL of a user: a role, or several with '-' between them."""
        name = f"qworker-{role}" if role != TESTER else TESTER
        return f"unix://{name}:{self.passwords[name]}@{quote(self.server.socket)}"

    def redis(self, role: str = TESTER) -> redis.Redis:
        """A plain client as a user."""
        name = f"qworker-{role}" if role != TESTER else TESTER
        return redis.Redis(
            unix_socket_path=self.server.socket,
            username=name,
            password=self.passwords[name],
            retry=None,
        )

    def has_refused(self) -> bool:
        """Whether the server has refused anything since it was last asked."""
        with self.redis() as client:
            return bool(client.acl_log())

    def refused(self) -> list[dict[str, Any]]:
        """What the server has refused since it was last asked."""
        with self.redis() as client:
            entries: list[dict[str, Any]] = client.acl_log()
            client.acl_log_reset()
        return entries


@contextmanager
def guarded(
    engine: str,
    namespace: str,
    directory: Path,
    *,
    queues: Sequence[str] = (),
    more: Sequence[str] = (),
    loading: str = LOADING[0],
    listen: Sequence[str] = (),
) -> Iterator[GuardedServer]:
    """Start a server with an aclfile: a user for each role and for each of `more` ("consumer+daemon"), default off.

    The scripts are loaded, as by a deploy.
    """
    path = directory / "users.acl"
    path.write_text("user default on nopass ~* &* +@all\n")
    # DEBUG is otherwise refused for another reason than the ACL's.
    settings = ("--aclfile", str(path), "--enable-debug-command", "yes", *listen)
    with servers.start(engine, *settings) as server:
        version = Server.parse(server.version)
        users = []
        for given in (*ROLES, *more):
            named = given.split("+")
            for_all = any(ROLES[each].every_queue for each in named)
            users.append(
                User(
                    name="qworker-" + "-".join(named),
                    roles=named,
                    queues=() if for_all else queues,
                    password=secrets.token_urlsafe(16),
                )
            )
        lines = write_users(users, namespace, server=version, loading=loading)
        passwords = {user.name: user.password or "" for user in users}
        passwords[TESTER] = secrets.token_urlsafe(16)
        lines += [f"user {TESTER} on >{passwords[TESTER]} ~* &* +@all", "user default reset off"]
        path.write_text("\n".join(lines) + "\n")
        with server.redis() as client:
            for name in SCRIPT_NAMES:
                client.script_load(load_script(name).source)
            client.execute_command("ACL", "LOAD")
        yield GuardedServer(server, namespace, passwords)
