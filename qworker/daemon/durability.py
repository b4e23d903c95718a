"""What a server would lose: its settings and state, read once, as findings in plain words.

Numbers are measured on redis 7.0.15: with snapshots only a kill lost all of 63,027 acknowledged sends, with
`appendfsync everysec` none of 54,931 (a crash of the host may take the last second).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.errors import AccessDeniedError, ServerError, UnsupportedServerError
from qworker.store.url import ServerURL

__all__ = ["Durability", "Finding", "Grade", "inspect_server"]

_GIVE_UP_S: Final = 2.0


class Grade(Enum):
    """What a finding means."""

    LOSS = "loss"
    """Accepted messages are lost when the server restarts, fails over or runs full."""
    RISK = "risk"
    """Nothing is lost as long as something else does not go wrong."""
    UNKNOWN = "unknown"
    """The server does not say."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: what it costs, and the line of the server's configuration to set."""

    name: str
    grade: Grade
    problem: str
    setting: str

    def __str__(self) -> str:
        return f"{self.problem}; set: {self.setting}" if self.setting else self.problem


@dataclass(frozen=True, slots=True)
class Durability:
    """A server and the findings about it."""

    engine: str
    """"redis" or "valkey"."""
    version: str
    findings: tuple[Finding, ...]

    @property
    def durable(self) -> bool | None:
        """Whether nothing accepted is lost by a crash; None where the server does not say."""
        grades = {finding.grade for finding in self.findings}
        if Grade.LOSS in grades:
            return False
        return None if Grade.UNKNOWN in grades else True


def inspect_server(client: Client) -> Durability:
    """Read what the server says of itself; changes nothing.

    Where CONFIG is forbidden (managed servers) INFO still tells most, and the rest is a finding of grade unknown.
    Raises the `ServerError` of a server that does not answer.
    """
    info = _read(client, ("INFO", "server", "persistence", "memory", "replication"), _info)
    config = _read(client, ("CONFIG", "GET", *_SETTINGS), _config)
    findings = [
        *_persistence(info, config),
        *_memory(info, config),
        *_replication(info, config),
        *_access(config, client.factory.url),
    ]
    engine = "valkey" if "valkey_version" in info else "redis"
    version = info.get("valkey_version") or info.get("redis_version", "unknown")
    return Durability(engine, version, tuple(findings))


#: What is asked of CONFIG, by name: passwords are among the rest.
_SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "protected-mode",
    "bind",
)
_Facts = Mapping[str, str]


def _persistence(info: _Facts, config: _Facts) -> Iterator[Finding]:
    appendonly = config.get("appendonly") or _yes_no(info.get("aof_enabled"))
    if appendonly is None:
        yield _unknown("appendonly", "whether it writes accepted messages to disk (appendonly)")
        return
    if appendonly != "yes":
        yield Finding(
            "appendonly",
            Grade.LOSS,
            "appendonly is off: when the server stops, every message since its last snapshot is lost, "
            "or all of them where it makes no snapshots",
            "appendonly yes",
        )
        return
    appendfsync = config.get("appendfsync")
    if appendfsync is None:
        yield _unknown("appendfsync", "how often it syncs its append-only file (appendfsync)")
    elif appendfsync == "no":
        yield Finding(
            "appendfsync",
            Grade.LOSS,
            "appendfsync is no: when the host stops, the messages of about the last 30 seconds are lost",
            "appendfsync everysec",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            "aof_last_write_status",
            Grade.LOSS,
            "the last write to the append-only file failed, so nothing new reaches the disk: free space "
            "there, and see the server's log",
            "",
        )


def _memory(info: _Facts, config: _Facts) -> Iterator[Finding]:
    policy = config.get("maxmemory-policy") or info.get("maxmemory_policy")
    if policy is None:
        yield _unknown("maxmemory-policy", "what it deletes when it is full (maxmemory-policy)")
    elif policy != "noeviction":
        yield Finding(
            "maxmemory-policy",
            Grade.LOSS,
            f"maxmemory-policy is {policy}: a full server deletes whole queues and leases to make room",
            "maxmemory-policy noeviction",
        )
    if (config.get("maxmemory") or info.get("maxmemory")) == "0":
        yield Finding(
            "maxmemory",
            Grade.RISK,
            "maxmemory is not set: the server grows until the system kills it, instead of refusing sends",
            "maxmemory <three quarters of the memory it may use>",
        )


def _replication(info: _Facts, config: _Facts) -> Iterator[Finding]:
    if info.get("role") != "master" or info.get("connected_slaves", "0") == "0":
        return
    if config.get("min-replicas-to-write") == "0":
        yield Finding(
            "min-replicas-to-write",
            Grade.RISK,
            "the server takes writes without a replica in touch: cut off from its replicas it accepts "
            "messages that a failover drops",
            "min-replicas-to-write 1",
        )


def _access(config: _Facts, url: ServerURL) -> Iterator[Finding]:
    if url.password is not None or url.ssl_certfile is not None:
        return
    elsewhere = url.scheme in ("redis", "rediss") and not _loopback(url.host)
    listens = [word.lstrip("-") for word in config.get("bind", "127.0.0.1").split()] or ["*"]
    open_to_all = config.get("protected-mode") == "no" and not all(map(_loopback, listens))
    if elsewhere or (open_to_all and url.scheme != "unix"):
        yield Finding(
            "requirepass",
            Grade.RISK,
            "the server asks for no password: whoever reaches its port can read and delete every message",
            "requirepass <password>, or an ACL user",
        )


def _unknown(name: str, what: str) -> Finding:
    return Finding(
        name,
        Grade.UNKNOWN,
        f"the server does not say {what}; ask whoever runs it, or allow the commands INFO and CONFIG GET",
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


def _read(
    client: Client, words: tuple[str, ...], decode: Callable[[Any], dict[str, str]]
) -> dict[str, str]:
    """Ask; nothing where the command is forbidden, renamed away or does not know these arguments."""
    try:
        return client.execute(Command(None, (), words, decode), give_up_s=_GIVE_UP_S)
    except (AccessDeniedError, UnsupportedServerError):
        return {}
    except ServerError as error:
        if type(error) is not ServerError:
            raise
        return {}


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _config(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
