"""Transports (TCP, TLS, Unix socket) as redis-py's connection classes and their settings."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import connection as aio
from redis.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)

if TYPE_CHECKING:
    from qworker.store.nodes import Address
    from qworker.store.url import ServerURL

__all__ = ["address_settings", "connection_classes", "transport_settings"]

_CLASSES: Final[dict[str, tuple[type[AbstractConnection], type[aio.AbstractConnection]]]] = {
    "redis": (Connection, aio.Connection),
    "rediss": (SSLConnection, aio.SSLConnection),
    "unix": (UnixDomainSocketConnection, aio.UnixDomainSocketConnection),
}

# Detects a dead peer after 30 + 3 × 10 s, even while nothing is sent. TCP_KEEPALIVE is the TCP_KEEPIDLE of macOS.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPALIVE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
}


def connection_classes(
    url: ServerURL,
) -> tuple[type[AbstractConnection], type[aio.AbstractConnection]]:
    """Return the sync and the asyncio class for a URL."""
    return _CLASSES[url.scheme.partition("+")[0]]


def address_settings(url: ServerURL, address: Address) -> dict[str, Any]:
    """Return the settings that name the server."""
    if url.scheme == "unix":
        return {"path": address.host}
    return {"host": address.host, "port": address.port}


def transport_settings(url: ServerURL) -> dict[str, Any]:
    """Return the settings of keepalive and TLS."""
    if url.scheme == "unix":
        return {}
    options = {
        getattr(socket, option): value
        for option, value in _KEEPALIVE.items()
        if hasattr(socket, option)
    }
    transport: dict[str, Any] = {"socket_keepalive": True, "socket_keepalive_options": options}
    if url.tls:
        transport |= {
            "ssl_ca_certs": url.ssl_ca_certs,
            "ssl_certfile": url.ssl_certfile,
            "ssl_keyfile": url.ssl_keyfile,
            "ssl_cert_reqs": "none" if url.insecure else "required",
            "ssl_check_hostname": url.ssl_check_hostname and not url.insecure,
        }
    return transport
