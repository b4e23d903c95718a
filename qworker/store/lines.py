"""The connections of one caller: at most one per server, opened when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.store.connection import ConnectionFactory
    from qworker.store.nodes import Address

__all__ = ["AsyncLines", "Line", "Lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """A connection, and who is at its other end."""

    connection: Any  # most of redis-py's connection has no types
    address: Address
    client_id: int
    """By which the server knows the connection: higher than that of any earlier one to the same run of it."""
    run_id: str = ""
    """Which run of the server it is; '' where the server does not say."""


class Lines:
    """Lines to the servers of a factory. `opened` is called with every new one before it is used, and may raise.

    Those to servers that have no slots any more are closed when another is opened, unless they are `busy`.
    """

    __slots__ = ("_busy", "_factory", "_lines", "_opened")

    def __init__(
        self,
        factory: ConnectionFactory,
        opened: Callable[[Line], None] | None = None,
        *,
        busy: Callable[[Address], bool] | None = None,
    ) -> None:
        self._factory, self._opened, self._busy = factory, opened, busy
        self._lines: dict[Address, Line] = {}

    def known(self, address: Address) -> Line | None:
        """The open line to a server, if there is one."""
        return self._lines.get(address)

    def to(self, address: Address, within_s: float | None = None) -> Line:
        """The line to a server, opened (see `ConnectionFactory.open`) where there is none. Raises `ServerError`."""
        line = self._lines.get(address)
        if line is None:
            for other in self._factory.abandoned(self._lines):
                if self._busy is None or not self._busy(other):
                    self.drop(other)
            line = self._factory.open(address, within_s)
            if self._opened is not None:
                try:
                    self._opened(line)
                except BaseException:
                    line.connection.disconnect()
                    raise
            self._lines[address] = line
        return line

    def drop(self, address: Address) -> None:
        """Close the line to a server, if there is one."""
        line = self._lines.pop(address, None)
        if line is not None:
            line.connection.disconnect()

    def close(self) -> None:
        """Close all lines."""
        for address in [*self._lines]:
            self.drop(address)

    def let_go(self) -> None:
        """Close a forked copy's descriptors and say nothing over them: the connections are its parent's."""
        for line in self._lines.values():
            sock = line.connection._sock
            if sock is not None:
                # Without a TLS close, and so that redis-py's object does not close the number again.
                os.close(sock.detach())
        self._lines = {}


class AsyncLines:
    """As `Lines`, on one event loop."""

    __slots__ = ("_factory", "_lines", "_opened")

    def __init__(
        self, factory: ConnectionFactory, opened: Callable[[Line], Awaitable[None]] | None = None
    ) -> None:
        self._factory, self._opened = factory, opened
        self._lines: dict[Address, Line] = {}

    async def to(self, address: Address, within_s: float | None = None) -> Line:
        """The line to a server, opened where there is none, as `Lines.to` does."""
        line = self._lines.get(address)
        if line is None:
            for other in self._factory.abandoned(self._lines):
                await self.drop(other)
            line = await self._factory.aopen(address, within_s)
            if self._opened is not None:
                try:
                    await self._opened(line)
                except BaseException:
                    await line.connection.disconnect(nowait=True)
                    raise
            self._lines[address] = line
        return line

    async def drop(self, address: Address) -> None:
        """Close the line to a server, if there is one."""
        line = self._lines.pop(address, None)
        if line is not None:
            await line.connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close all lines."""
        for address in [*self._lines]:
            await self.drop(address)
