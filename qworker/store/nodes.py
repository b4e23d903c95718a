"""Where servers are: one address, or the list of them in the URL of a Cluster or of Sentinels."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from qworker.errors import InvalidOptionError
from qworker.store.unquoted import unquoted

__all__ = ["Address", "decode", "parse_nodes", "parse_port"]


class Address(NamedTuple):
    """A host name or address, and a port; of a Unix socket its path, and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_nodes(netloc: str, default_port: int, field: str) -> tuple[Address, ...]:
    """Read `[user:password@]host[:port],host[:port]`; one that is named twice counts once.

    Raises `InvalidOptionError`, which quotes nothing.
    """
    nodes: list[Address] = []
    for part in netloc.rpartition("@")[2].split(","):
        with unquoted(field, "cannot be parsed", "check brackets of an IPv6 address"):
            one = urlsplit(f"//{part}")
        if not one.hostname:
            raise InvalidOptionError(
                field, "names an empty host", "write host:port,host:port for several"
            )
        nodes.append(Address(decode(one.hostname, field), parse_port(one, default_port, field)))
    return tuple(dict.fromkeys(nodes))


def parse_port(parts: SplitResult, default: int, field: str) -> int:
    """Read the port of a URL with one host. Raises `InvalidOptionError`."""
    with unquoted(field, "has a wrong port", "a port is a number from 1 to 65535"):
        port = parts.port
        if port == 0:
            raise ValueError
    return default if port is None else port


def decode(text: str, field: str) -> str:
    """Undo percent-encoding. Raises `InvalidOptionError` for what is no UTF-8, and for a NUL."""
    with unquoted(field, "has an escape that is no UTF-8", "percent-encode the bytes of UTF-8"):
        decoded = unquote(text, errors="strict")
    if "\0" in decoded:
        raise InvalidOptionError(field, "has a NUL (%00)", "leave it out")
    return decoded
