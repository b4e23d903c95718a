"""Connections to Redis that send each call once: `ConnectionFactory` finds the server and opens them.

For Sentinel and Cluster, `qworker.store.topology` finds the server: redis-py's clients for them retry calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, cast

from redis import ConnectionPool, Redis
from redis.connection import (
    AbstractConnection,
)

from qworker.errors import (
    ServerError,
    UnavailableError,
)
from qworker.store.hello import Hello, check_server
from qworker.store.nodes import Address
from qworker.store.opening import MAX_BLOCK_S, Opener, ServerConnection
from qworker.store.searching import SharedSearch, search
from qworker.store.server_errors import is_noscript, map_error
from qworker.store.topology import Key, topology_of
from qworker.store.transport import address_settings, connection_classes
from qworker.store.url import ServerURL

__all__ = [
    "MAX_BLOCK_S",
    "ConnectionFactory",
    "ServerConnection",
    "ServerURL",
    "is_noscript",
    "map_error",
]

#: The least time for a question when the time of the whole search is up.
_LEAST_QUESTION_S: Final = 0.05


class ConnectionFactory(Opener):
    """Opens connections to the servers of one URL; keeps none, so you can use it after a fork.

    A connection cannot be used after a fork: parent and child would read each other's replies. Open new ones in the
    child and drop the inherited objects; that does not affect the parent's sockets.
    """

    def __init__(
        self,
        url: str | ServerURL,
        *,
        connect_timeout_s: float = 2.0,
        reply_timeout_s: float = 2 * MAX_BLOCK_S,
        name: str | None = None,
    ) -> None:
        """Check the options; does not connect.

        `connect_timeout_s` bounds the connect to each address of the host, `reply_timeout_s` the wait for each piece
        of a reply; a blocking command must end a round trip earlier. `name` is shown by CLIENT LIST (default
        "qworker"): printable ASCII without spaces. Raises `InvalidOptionError`.
        """
        super().__init__(
            url, connect_timeout_s=connect_timeout_s, reply_timeout_s=reply_timeout_s, name=name
        )
        self._topology = topology_of(self.url)
        self._shared_search = SharedSearch(self._topology)

    def __repr__(self) -> str:
        return f"ConnectionFactory({str(self.url)!r})"

    @property
    def clustered(self) -> bool:
        """Whether the servers are a Cluster: then every call names a key, and two queues need two calls."""
        return self.url.clustered

    # -- which server --------------------------------------------------------------------------

    def node(self, key: Key | None = None) -> Address | None:
        """Return the server for calls with this key; None if it is not known yet."""
        return self._topology.node(key)

    def last_node(self, key: Key | None = None) -> Address | None:
        """Return the server that was last known for this key, even if calls have to search for it again.

        Shows which server caused the failure of a call. None only before the first search, and for a master that
        Sentinels have to name again: then all calls share one server.
        """
        return self._topology.last_node(key)

    def locate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """Return the server for calls with this key; asks Sentinels or nodes if necessary. Raises `ServerError`.

        `within_s`: about how long to search; None for up to 1.25 s per server that is asked.
        """
        node = self._topology.node(key)
        if node is not None:
            return node
        left_s = _time_left(within_s)
        return search(self._topology, key, lambda question: self._ask(question, left_s()))

    async def alocate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """Return the server for calls with this key, as `locate` does; tasks of an event loop share a search."""
        node = self._topology.node(key)
        if node is not None:
            return node
        left_s = _time_left(within_s)
        return await self._shared_search.find(
            key, lambda question: self._aask(question, left_s()), left_s
        )

    def masters(self) -> tuple[Address, ...]:
        """Return all servers that have slots, or the only server. Raises `ServerError`."""
        self.locate()
        return self._topology.masters()

    async def amasters(self) -> tuple[Address, ...]:
        """Return all servers that have slots, as `masters` does."""
        await self.alocate()
        return self._topology.masters()

    def failed(self, error: ServerError, address: Address) -> bool:
        """Learn from the error of a call to a server; returns whether to drop the connection."""
        return self._topology.failed(error, address)

    def abandoned(self, addresses: Iterable[Address]) -> list[Address]:
        """Return those of `addresses` that get no more calls."""
        masters = self._topology.masters()
        return [address for address in addresses if address not in masters]

    # -- connecting ----------------------------------------------------------------------------

    def connect(self, key: Key | None = None) -> AbstractConnection:
        """Open a connection to the server for a key, authenticated and with its database selected; you disconnect it.

        Raises `UnsupportedServerError` for an old server, `ReadOnlyError` if Sentinels name a replica,
        `InvalidOptionError` if the server has no such database, else the fitting `ServerError`, mostly
        `UnavailableError`.

        Drop a connection that has raised an error, and call `connect` again: redis-py would silently reconnect at its
        next `send_packed_command`, without these checks.
        """
        return cast(AbstractConnection, self.open(self.locate(key)).connection)

    def open(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Open a connection to one server, as `connect` does; `within_s` can shorten the timeout of each step."""
        try:
            settings = {**self._sync_settings(), **self._timeouts(within_s)}
            server, hello = self._open(address, settings, ask_run=self._asks_run)
            server.connection.socket_timeout = self.reply_timeout_s
            server.connection._sock.settimeout(self.reply_timeout_s)
            try:
                self._accept(hello, address)
            except BaseException:
                server.connection.disconnect()
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return server

    async def aopen(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Open a connection to one server for asyncio, as `open` does."""
        try:
            settings = {**self._async_settings(), **self._timeouts(within_s)}
            server, hello = await self._aopen(address, settings, ask_run=self._asks_run)
            server.connection.socket_timeout = self.reply_timeout_s
            try:
                self._accept(hello, address)
            except BaseException:
                await server.connection.disconnect(nowait=True)
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return server

    def redis(self, key: Key | None = None) -> Redis:
        """Make a redis-py client with its own pool, for reads such as INFO and SCAN; you close it.

        It has the same settings, but raises redis-py's errors (see `map_error`), does not check the server's version,
        and stays with the server that has the key now.
        """
        address = self.locate(key)
        pool = ConnectionPool(
            connection_classes(self.url)[0],
            **self._sync_settings(),
            **address_settings(self.url, address),
        )
        return Redis.from_pool(pool)

    def _accept(self, hello: Hello, address: Address) -> None:
        check_server(hello, str(address), clustered=self.clustered)
        self._topology.accept(hello, address)


def _time_left(within_s: float | None) -> Callable[[], float | None]:
    """Return what says how many of the seconds from now are left, at least those of a question."""
    if within_s is None:
        return lambda: None
    deadline = time.monotonic() + within_s
    return lambda: max(_LEAST_QUESTION_S, deadline - time.monotonic())
