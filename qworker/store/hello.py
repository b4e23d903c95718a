"""The handshake: whether qworker supports the server, and which run of the server it is."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from qworker.errors import UnsupportedServerError

__all__ = ["ASK_RUN", "ASK_SERVER", "OLDEST_SERVER", "Hello", "check_server", "run_id_of"]

#: The two questions, as bytes of the protocol.
ASK_SERVER: Final = b"*1\r\n$5\r\nHELLO\r\n"
ASK_RUN: Final = b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n"
_RUN_ID: Final = re.compile(rb"^run_id:([0-9a-f]{40})\r?$", re.MULTILINE)

#: Of Redis; its successor Valkey began with 7.2.
OLDEST_SERVER: Final = (7, 0)


class Hello(msgspec.Struct, frozen=True):
    """The reply of HELLO, which no ACL forbids, unlike INFO."""

    server: str = ""
    version: str = ""
    mode: str = ""
    """"standalone", "cluster" or "sentinel"."""
    role: str = ""
    """"master" or "replica"."""
    client_id: int = 0
    """Rises with every connection; restarts with the server."""
    dragonfly: str = ""

    @classmethod
    def of(cls, reply: Any) -> Hello:
        """Read the reply."""
        fields = dict(zip(reply[::2], reply[1::2], strict=False))
        number = fields.get(b"id")
        return cls(
            server=_ascii(fields.get(b"server")),
            version=_ascii(fields.get(b"version")),
            mode=_ascii(fields.get(b"mode")),
            role=_ascii(fields.get(b"role")),
            client_id=number if isinstance(number, int) else 0,
            dragonfly=_ascii(fields.get(b"dragonfly_version", b"")),
        )


def run_id_of(reply: Any) -> str:
    """Read the run id from a reply of INFO: 40 random hex digits, drawn at every start; '' if it has none."""
    match = _RUN_ID.search(reply) if isinstance(reply, bytes) else None
    return "" if match is None else match[1].decode()


def check_server(hello: Hello, address: str, *, clustered: bool = False) -> None:
    """Raise `UnsupportedServerError` unless it is Redis 7.0, Valkey 7.2 or newer, of the kind that the URL names.

    KeyDB reports the Redis that it descends from, older than 7.0. DragonflyDB reports a Redis and its own version; the
    scripts are not tested on it.
    """
    needs = "qworker needs Redis 7.0, Valkey 7.2, or newer"
    if hello.dragonfly:
        raise UnsupportedServerError(f"{address} is DragonflyDB {hello.dragonfly}; {needs}")
    if hello.mode == "sentinel":
        raise UnsupportedServerError(
            f"{address} is a Sentinel, which stores nothing; write redis+sentinel://{address}/<service>"
        )
    match = re.match(r"([0-9]+)\.([0-9]+)", hello.version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_SERVER:
        raise UnsupportedServerError(f"{address} is {hello.server} {hello.version}; {needs}")
    if hello.mode == "cluster" and not clustered:
        raise UnsupportedServerError(
            f"{address} is a node of a Cluster; write redis+cluster://{address}"
        )
    if hello.mode == "standalone" and clustered:
        raise UnsupportedServerError(f"{address} is not in a Cluster; write redis://{address}")


def _ascii(value: Any) -> str:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    return text[:40]
