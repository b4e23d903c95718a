"""Addresses of servers: one, or the list in the URL of a Cluster or of Sentinels."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from qworker.errors import InvalidOptionError
from qworker.store.redacted import redacted

__all__ = ["Address", "decode", "parse_nodes", "parse_port"]


class Address(NamedTuple):
    """A host name or address with a port; for a Unix socket its path with port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_nodes(netloc: str, default_port: int, field: str) -> tuple[Address, ...]:
    """Read `[user:password@]host[:port],host[:port]`; duplicates count once.

    Raises `InvalidOptionError`, without quoting the value.
    """
    nodes: list[Address] = []
    for part in netloc.rpartition("@")[2].split(","):
        with redacted(field, "cannot be parsed", "check the brackets of an IPv6 address"):
            one = urlsplit(f"//{part}")
        if not one.hostname:
            raise InvalidOptionError(
                field, "names an empty host", "write host:port,host:port for several"
            )
        nodes.append(Address(decode(one.hostname, field), parse_port(one, default_port, field)))
    return tuple(dict.fromkeys(nodes))


def parse_port(parts: SplitResult, default: int, field: str) -> int:
    """Read the port of a URL with one host. Raises `InvalidOptionError`."""
    with redacted(field, "has a wrong port", "a port is a number from 1 to 65535"):
        port = parts.port
        if port == 0:
            raise ValueError
    return default if port is None else port


def decode(text: str, field: str) -> str:
    """Undo percent-encoding. Raises `InvalidOptionError` for invalid UTF-8 and for a NUL."""
    with redacted(field, "has an escape that is not UTF-8", "percent-encode the bytes of UTF-8"):
        decoded = unquote(text, errors="strict")
    if "\0" in decoded:
        raise InvalidOptionError(field, "has a NUL (%00)", "leave it out")
    return decoded
