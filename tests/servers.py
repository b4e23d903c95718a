"""Servers for tests: which engines this machine has, and starting one that ends with its test.

    with servers.start("valkey", "--maxmemory", "10mb") as server:
        server.url       # unix:///…/s
        server.socket    # the path, as a str
        server.pid
        server.redis()   # a plain redis.Redis without retries, closed with the server

An engine that is missing skips the test, or fails it where the environment says CI=true.

With QWORKER_TEST_RTT=5 the URL is that of a relay, this many milliseconds away; `socket` and `redis()` stay near.
With QWORKER_TEST_ACL=1 the URL is that of a user with the rights of the roles of `qworker acl`, beside those that tests
need for themselves; a test whose server has refused anything fails.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from qworker.engine import acl
from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.engines import find_engines, identify
from qworker.store.embedded.private import PrivateStore
from tests.relay import RTT_MS, Relay

__all__ = ["Server", "binary_of", "engines", "missing", "start", "version_of"]


#: Whether tests run as the roles.
GUARDED = os.environ.get("QWORKER_TEST_ACL") == "1"
#: Commands that tests send over the product's connections as well: to prepare, inspect or disturb a server.
_TESTS_OWN = (
    "keys", "dump", "restore", "set", "get", "append", "incr", "sadd", "smembers", "rename", "expire",
    "object", "sort", "lset", "linsert", "hincrbyfloat", "zincrby", "zrangebylex", "xinfo", "xgroup",
    "debug", "client", "config", "info", "memory", "script", "dbsize", "eval", "multi", "exec",
    "ttl", "copy", "lpop", "monitor", "acl", "command", "echo", "eval_ro",
)  # fmt: skip


class Server:
    """A running server of a test."""

    def __init__(self, store: PrivateStore) -> None:
        self.url, self.socket, self.pid = store.url, str(store.socket), store.pid
        self._own_url = store.url
        self.directory = store.directory
        self.engine, self.version = store.engine.name, store.engine.version
        self._clients: list[redis.Redis] = []

    def redis(self) -> redis.Redis:
        """Open a plain client without retries; it is closed with the server."""
        client = ConnectionFactory(self._own_url).redis()
        self._clients.append(client)
        return client

    def guard(self) -> None:
        """Let `url` be that of a user with the rights of all roles, in any namespace."""
        password = secrets.token_urlsafe(16)
        roles = ["producer", "consumer", "daemon", "operator"]
        user = acl.User(name="tests", roles=roles, password=password)
        [line] = acl.write_users([user], "*", server=acl.Server.parse(self.version))
        words = line.partition(" (")[0].split(" ")[1:]
        with self.redis() as client:
            own = [f"+{right}" for right in _TESTS_OWN]
            client.execute_command("ACL", "SETUSER", *words, *own)
        self.url = f"unix://tests:{password}@{quote(self.socket)}"

    def refused(self) -> list[dict[str, object]]:
        """What it has refused to the user of `guard`."""
        try:
            with self.redis() as client:
                entries: list[dict[str, object]] = client.acl_log()
        except redis.ConnectionError:
            return []  # a test has given it a password meanwhile, or has killed it
        return [entry for entry in entries if entry["username"] == "tests"]

    def close(self) -> None:
        """Close every client of `redis()`."""
        while self._clients:
            self._clients.pop().close()


@cache
def engines() -> tuple[tuple[str, str], ...]:
    """List (engine, path of its server) of what this machine has."""
    binaries = {engine.name: engine.binary for engine in reversed(list(find_engines()))}
    if "redis" not in binaries and (checker := shutil.which("redis-check-rdb")):
        # In Debian's redis-tools this *is* the server: one binary, told by its name what to be.
        # One link for all processes: many are killed, and would leave theirs behind.
        directory = Path(tempfile.gettempdir(), f"qworker-test-engine-{os.getuid()}")
        directory.mkdir(mode=0o700, exist_ok=True)
        link, new = directory / "redis-server", directory / str(os.getpid())
        new.symlink_to(checker)
        new.replace(link)
        binaries["redis"] = str(link)
    return tuple(sorted(binaries.items(), reverse=True))


def binary_of(engine: str) -> str:
    """Name the server binary of an engine; without one, the test is skipped (or fails in CI)."""
    path = dict(engines()).get(engine)
    return path if path is not None else missing(f"no {engine} server on this machine")


def version_of(engine: str) -> tuple[int, ...]:
    """Return the numbers of the version of an engine on this machine."""
    found = identify(binary_of(engine))
    assert found is not None
    return tuple(int(number) for number in found.version.split("."))


def missing(reason: str) -> str:
    """Skip the test because the machine lacks something; fail it where CI=true, which has to have everything."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def start(
    engine: str, *arguments: str, guarded: bool = GUARDED, far: bool = True
) -> Iterator[Server]:
    """Start a server of `engine` with extra arguments; it is ended on exit, and if this process dies.

    `guarded`: its URL is that of a user with the roles. A test of raw commands says False. `far`: with QWORKER_TEST_RTT
    its URL is that of a relay; a test of times that it sets itself says False.
    """
    with PrivateStore(binary=binary_of(engine), arguments=arguments) as store:
        server = Server(store)
        # One that asks for a password is about that.
        guarded = guarded and "--requirepass" not in arguments
        if guarded:
            server.guard()
        try:
            with relayed(server, RTT_MS if far else 0):
                yield server
            if guarded:
                assert server.refused() == []
        finally:
            server.close()


@contextmanager
def relayed(server: Server, rtt_ms: float) -> Iterator[None]:
    """Put a relay in front of a server for the length of the block; 0 for none."""
    if not rtt_ms:
        yield
        return
    near = server.url
    with Relay(near, rtt_ms=rtt_ms) as relay:
        server.url = relay.url
        try:
            yield
        finally:
            server.url = near
