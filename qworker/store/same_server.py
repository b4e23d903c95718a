"""Whether two URLs lead to the same queues."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qworker.store.url import ServerURL

__all__ = ["same_server"]

_THIS_HOST: Final = ("127.0.0.1", "::1")


def same_server(one: ServerURL, other: ServerURL) -> bool:
    """Say whether two URLs name the same database of the same server.

    Ignores users, passwords and TLS: a worker may have its own user. Compares host names as text, without resolving
    them. One common Sentinel or node of a Cluster is enough. Raises `StoreError` for an embedded store without a
    directory.
    """
    one, other = _resolved(one), _resolved(other)
    if one.db != other.db or (one.has_sentinels, one.service) != (
        other.has_sentinels,
        other.service,
    ):
        return False
    return bool(_addresses(one) & _addresses(other))


def _resolved(url: ServerURL) -> ServerURL:
    """Return the URL of an embedded store's socket, running or not; other URLs as they are."""
    if url.scheme != "embedded":
        return url
    from qworker.store.embedded.store import Store, default_directory

    return ServerURL.parse(Store(url.path or default_directory()).url)


def _addresses(url: ServerURL) -> set[tuple[str, int]]:
    if url.scheme == "unix":
        return {(str(Path(url.path or "").resolve()), 0)}
    return {(_host(host), port) for host, port in url.nodes or ((url.host, url.port),)}


def _host(name: str) -> str:
    return "localhost" if name in _THIS_HOST else name.lower()
