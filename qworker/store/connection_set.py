"""The connections of one caller: at most one per server, opened on first use."""

from __future__ import annotations

import os
import select
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.store.connections import ConnectionFactory, ServerConnection
    from qworker.store.nodes import Address

__all__ = ["AsyncConnectionSet", "ConnectionSet"]


class ConnectionSet:
    """Connections to the servers of a factory. `opened` is called with every new one before its first use; may raise.

    Opening one closes those to servers that have lost their slots, unless `busy` says that they are in use.
    """

    __slots__ = ("_busy", "_factory", "_opened", "_polls", "_servers")

    def __init__(
        self,
        factory: ConnectionFactory,
        opened: Callable[[ServerConnection], None] | None = None,
        *,
        busy: Callable[[Address], bool] | None = None,
    ) -> None:
        self._factory, self._opened, self._busy = factory, opened, busy
        self._servers: dict[Address, ServerConnection] = {}
        self._polls: dict[Address, _Poll] = {}

    def known(self, address: Address) -> ServerConnection | None:
        """Return the open connection to a server; None if there is none."""
        return self._servers.get(address)

    def to(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Return the connection to a server; opens one if necessary, as `ConnectionFactory.open` does."""
        server = self._servers.get(address)
        if server is None:
            for other in self._factory.abandoned(self._servers):
                if self._busy is None or not self._busy(other):
                    self.drop(other)
            server = self._factory.open(address, within_s)
            if self._opened is not None:
                try:
                    self._opened(server)
                except BaseException:
                    server.connection.disconnect()
                    raise
            self._servers[address] = server
        return server

    def idle(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Return the connection to a server over which no reply is due; opens one if the server has closed it.

        Over a closed connection a call would end in doubt: its caller could not try another server.
        """
        server = self._servers.get(address)
        if server is not None and not self._has_ended(address, server.connection._sock):
            return server
        self.drop(address)
        return self.to(address, within_s)

    def _has_ended(self, address: Address, sock: Any) -> bool:
        """Whether an idle connection can be read: it was closed, or holds a reply without a waiting caller."""
        if sock is None:
            return False
        poll = self._polls.get(address)
        if poll is None or poll.sock is not sock:
            poll = self._polls[address] = _Poll(sock)
        return poll.readable()

    def drop(self, address: Address) -> None:
        """Close the connection to a server, if there is one."""
        server = self._servers.pop(address, None)
        self._polls.pop(address, None)
        if server is not None:
            server.connection.disconnect()

    def close(self) -> None:
        """Close all connections."""
        for address in [*self._servers]:
            self.drop(address)

    def close_inherited(self) -> None:
        """Close the descriptors in a forked child without sending anything: the connections are its parent's."""
        for server in self._servers.values():
            sock = server.connection._sock
            if sock is not None:
                # Without a TLS close, and so that redis-py does not close the number again.
                os.close(sock.detach())
        self._servers, self._polls = {}, {}


class _Poll:
    """Asks a socket whether it can be read. Made once: to make it costs as much as to ask."""

    __slots__ = ("_poll", "sock")

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self._poll: select.poll | None = None
        if hasattr(select, "poll"):  # not on Windows
            self._poll = select.poll()
            self._poll.register(sock, select.POLLIN)

    def readable(self) -> bool:
        """Whether it can be read, or has an error, now."""
        if self._poll is None:
            return bool(select.select([self.sock], [], [], 0)[0])
        return bool(self._poll.poll(0))


class AsyncConnectionSet:
    """A `ConnectionSet` for one event loop."""

    __slots__ = ("_factory", "_opened", "_servers")

    def __init__(
        self,
        factory: ConnectionFactory,
        opened: Callable[[ServerConnection], Awaitable[None]] | None = None,
    ) -> None:
        self._factory, self._opened = factory, opened
        self._servers: dict[Address, ServerConnection] = {}

    async def to(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Return the connection to a server, as `ConnectionSet.to` does."""
        server = self._servers.get(address)
        if server is None:
            for other in self._factory.abandoned(self._servers):
                await self.drop(other)
            server = await self._factory.aopen(address, within_s)
            if self._opened is not None:
                try:
                    await self._opened(server)
                except BaseException:
                    await server.connection.disconnect(nowait=True)
                    raise
            self._servers[address] = server
        return server

    async def idle(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Return the connection to a server over which no reply is due, as `ConnectionSet.idle` does."""
        server = self._servers.get(address)
        reader = None if server is None else server.connection._reader
        # At the end as soon as the loop has read it.
        if reader is not None and (reader.at_eof() or reader.exception() is not None):
            await self.drop(address)
        return await self.to(address, within_s)

    async def drop(self, address: Address) -> None:
        """Close the connection to a server, if there is one."""
        server = self._servers.pop(address, None)
        if server is not None:
            await server.connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close all connections."""
        for address in [*self._servers]:
            await self.drop(address)
