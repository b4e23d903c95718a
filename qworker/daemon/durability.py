"""Weaknesses of a server, by its settings and state: each says what it may cost, and what to set instead.

`python -m benchmarks crash` measures it: a killed server with snapshots alone has lost every send since the last one,
one with `appendfsync everysec` none (a crash of the host may take the last second).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.sync import Client
from qworker.engine.command import Command
from qworker.engine.raw import raw, server_info
from qworker.errors import (
    AccessDeniedError,
    LoginError,
    ServerError,
    UnsupportedServerError,
    server_refused,
)
from qworker.store.nodes import Address

__all__ = ["Durability", "Grade", "NodeFacts", "Weakness", "inspect_server"]

_GIVE_UP_S: Final = 2.0


class Grade(Enum):
    """How bad a weakness is."""

    LOSS = "loss"
    """Accepted messages are lost when the server restarts, fails over or runs full."""
    OPEN = "open"
    """Anyone who reaches the server, or learns one password, can read and delete every message."""
    RISK = "risk"
    """Nothing is lost unless something else goes wrong."""
    UNKNOWN = "unknown"
    """The server does not say."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """A setting or state that may cost messages: what it costs, and the line of the server's configuration to set."""

    name: str
    grade: Grade
    problem: str
    setting: str

    def __str__(self) -> str:
        return f"{self.problem}; set: {self.setting}" if self.setting else self.problem


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A server: what it says in INFO, and its settings, as far as it may be asked for them."""

    node: Address
    info: Mapping[str, str]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Durability:
    """A server and its weaknesses."""

    engine: str
    """"redis" or "valkey"."""
    version: str
    findings: tuple[Weakness, ...]
    #: The reports of the servers that serve now.
    nodes: tuple[NodeFacts, ...] = ()

    @property
    def durable(self) -> bool | None:
        """Whether a crash loses nothing that was accepted; None if the server does not say."""
        grades = {finding.grade for finding in self.findings}
        if Grade.LOSS in grades:
            return False
        return None if Grade.UNKNOWN in grades else True

    @property
    def open(self) -> bool:
        """Whether the server lets unauthorised users do everything."""
        return any(finding.grade is Grade.OPEN for finding in self.findings)


def inspect_server(client: Client) -> Durability:
    """Read the server's settings and state, those of each node that serves now in a Cluster; changes nothing.

    If CONFIG is forbidden (managed servers), INFO says most of it, and the rest is a weakness of grade unknown.
    Raises the `ServerError` of a server that does not answer.
    """
    masters, seen, silent = client.factory.masters(), list[Durability](), ServerError("no server")
    for node in masters:
        try:
            seen.append(_inspect(client, node))
        except AWAY as error:
            silent = error
    if not seen:
        raise silent
    findings = dict.fromkeys(finding for server in seen for finding in server.findings)
    nodes = tuple(facts for server in seen for facts in server.nodes)
    return Durability(seen[0].engine, seen[0].version, tuple(findings), nodes)


def _inspect(client: Client, node: Address) -> Durability:
    info = _read(client, server_info("server", "persistence", "memory", "replication", node=node))
    config = _read(client, raw("CONFIG", "GET", *_SETTINGS, decode=_config, node=node))
    findings = [
        *_persistence(info, config),
        *_memory(info, config),
        *_replication(info, config),
        *_access(client, node, config),
    ]
    engine = "valkey" if "valkey_version" in info else "redis"
    version = info.get("valkey_version") or info.get("redis_version", "unknown")
    return Durability(engine, version, tuple(findings), (NodeFacts(node, info, config),))


#: Settings are asked for by name, because the others include passwords.
_SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "save",
    "protected-mode",
    "bind",
)
_Facts = Mapping[str, str]


def _persistence(info: _Facts, config: _Facts) -> Iterator[Weakness]:
    appendonly = config.get("appendonly") or _yes_no(info.get("aof_enabled"))
    if appendonly is None:
        yield _unknown("appendonly", "whether it writes accepted messages to disk (appendonly)")
        return
    if appendonly != "yes":
        yield Weakness(
            "appendonly",
            Grade.LOSS,
            "appendonly is off: when the server stops, every message since its last snapshot is lost, "
            "or all of them if it makes no snapshots",
            "appendonly yes",
        )
        return
    appendfsync = config.get("appendfsync")
    if appendfsync is None:
        yield _unknown("appendfsync", "how often it syncs its append-only file (appendfsync)")
    elif appendfsync == "no":
        yield Weakness(
            "appendfsync",
            Grade.LOSS,
            "appendfsync is no: when the host stops, the messages of about the last 30 seconds are lost",
            "appendfsync everysec",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Weakness(
            "aof_last_write_status",
            Grade.LOSS,
            "the last write to the append-only file failed, so nothing new reaches the disk: free some "
            "space there, and see the server's log",
            "",
        )


def _memory(info: _Facts, config: _Facts) -> Iterator[Weakness]:
    policy = config.get("maxmemory-policy") or info.get("maxmemory_policy")
    if policy is None:
        yield _unknown("maxmemory-policy", "what it deletes when it is full (maxmemory-policy)")
    elif policy != "noeviction":
        yield Weakness(
            "maxmemory-policy",
            Grade.LOSS,
            f"maxmemory-policy is {policy}: a full server deletes whole queues and leases to make room",
            "maxmemory-policy noeviction",
        )
    if (config.get("maxmemory") or info.get("maxmemory")) == "0":
        yield Weakness(
            "maxmemory",
            Grade.RISK,
            "maxmemory is not set: the server grows until the system kills it, instead of refusing sends",
            "maxmemory <three quarters of the memory it may use>",
        )


def _replication(info: _Facts, config: _Facts) -> Iterator[Weakness]:
    if info.get("role") != "master" or info.get("connected_slaves", "0") == "0":
        return
    if config.get("min-replicas-to-write") == "0":
        yield Weakness(
            "min-replicas-to-write",
            Grade.RISK,
            "the server accepts writes without a connected replica: cut off from its replicas, it accepts "
            "messages that a failover drops",
            "min-replicas-to-write 1",
        )


def _access(client: Client, node: Address, config: _Facts) -> Iterator[Weakness]:
    url = client.factory.url
    hosts = [node.host for node in url.nodes] or ([url.host] if url.host else [])
    elsewhere = not all(map(_loopback, hosts))
    listens = [word.lstrip("-") for word in config.get("bind", "127.0.0.1").split()] or ["*"]
    open_to_all = config.get("protected-mode") == "no" and not all(map(_loopback, listens))
    if not elsewhere and (not open_to_all or url.scheme == "unix"):
        return
    if url.password is None and url.ssl_certfile is None:
        yield Weakness(
            "requirepass",
            Grade.OPEN,
            "the server asks for no password: anyone who reaches its port can read and delete every message",
            "requirepass <password>, or an ACL user",
        )
    elif url.username in (None, "default"):
        # Only this user asks: one with fewer rights would be refused, and the server would log that.
        user = _read(client, raw("ACL", "GETUSER", "default", decode=_user, node=node))
        if "+@all" in user.get("commands", ""):
            yield Weakness(
                "default-user",
                Grade.OPEN,
                "the default user may do everything: anyone who learns its password can read and delete every "
                "message, and change the server",
                "users of `qworker acl`, and user default off",
            )


def _unknown(name: str, what: str) -> Weakness:
    return Weakness(
        name,
        Grade.UNKNOWN,
        f"the server does not report {what}; ask its operator, or allow the commands INFO and CONFIG GET",
        "",
    )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _yes_no(flag: str | None) -> str | None:
    return {"1": "yes", "0": "no"}.get(flag or "")


def _read(client: Client, command: Command[dict[str, str]]) -> dict[str, str]:
    """Execute a command; nothing if it is forbidden, renamed away or does not know these arguments.

    Raises `LoginError`: without a login no setting is readable, and that is the problem to report.
    """
    try:
        return client.execute(command, give_up_s=_GIVE_UP_S)
    except LoginError:
        raise
    except (AccessDeniedError, UnsupportedServerError):
        return {}
    except ServerError as error:
        if not server_refused(error):
            raise
        return {}


def _user(reply: list[Any]) -> dict[str, str]:
    """Read ACL GETUSER: names and values in turn; lists become words."""
    named = dict(zip(reply[::2], reply[1::2], strict=False))
    words = {name: value if isinstance(value, list) else [value] for name, value in named.items()}
    return {
        name.decode("utf-8", "replace"): " ".join(
            word.decode("utf-8", "replace") for word in value if isinstance(word, bytes)
        )
        for name, value in words.items()
    }


def _config(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
