"""The turns of an event loop's calls: a client has a bounded number of connections, and further calls wait for one.

In a Cluster each node has its own turns: calls to a node that stands still hold up no calls to others.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from qworker.client.execute.backoff import AWAY
from qworker.errors import UnavailableError

if TYPE_CHECKING:
    from qworker.errors import QworkerError
    from qworker.store.connections import ConnectionFactory
    from qworker.store.nodes import Address
    from qworker.store.topology import Key

__all__ = ["Failures", "Turn", "Turns"]


class Failures:
    """The servers that do not answer, as calls found: those that waited behind them need not find out again."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self._factory = factory
        #: By node of a Cluster; another server counts as one, at whatever address.
        self._failed: dict[Address | None, tuple[float, QworkerError]] = {}

    def node(self, key: Key | None) -> Address | None:
        """Return the node of a Cluster that calls with this key go to, if it is known."""
        return self._factory.last_node(key) if self._factory.clustered else None

    def note(self, address: Address | None, error: QworkerError) -> None:
        """Learn from the error of a call."""
        if isinstance(error, AWAY):
            node = address if self._factory.clustered else None
            self._failed[node] = time.monotonic(), error

    def served(self, address: Address) -> None:
        """Forget a server's failure: it has answered."""
        if self._failed:
            self._failed.pop(address if self._factory.clustered else None, None)

    def since(self, node: Address | None, began: float) -> QworkerError | None:
        """Return the error of a server that has failed since then, and answered no call after that."""
        at, error = self._failed.get(node, (began, None))
        return error if at > began else None


class Turns:
    """As many turns as there may be calls at a time, to each node of a Cluster or to the server."""

    def __init__(self, number: int, failures: Failures) -> None:
        self._number: Final = number
        self._failures = failures
        self._nodes: dict[Address | None, asyncio.Semaphore] = {}

    def of(self, key: Key | None, limit_s: float) -> Turn:
        """Return the turn of a call that is given up after `limit_s`."""
        node = self._failures.node(key)
        free = self._nodes.get(node)
        if free is None:
            free = self._nodes[node] = asyncio.Semaphore(self._number)
        return Turn(free, self._failures, node, limit_s)


class Turn:
    """A wait for a connection, and the seconds that its call has left then.

    They do not pass while the server answers: many calls at a time only take longer. Raises `UnavailableError` if none
    are left, since the server has failed the calls before.
    """

    __slots__ = ("_failures", "_free", "_node", "left_s")

    def __init__(
        self, free: asyncio.Semaphore, failures: Failures, node: Address | None, limit_s: float
    ) -> None:
        self._free, self._failures, self._node = free, failures, node
        self.left_s = limit_s

    async def __aenter__(self) -> Turn:
        if not self._free.locked():
            await self._free.acquire()
            return self
        began = time.monotonic()
        await self._free.acquire()
        error = self._failures.since(self._node, began)
        if error is not None:
            self.left_s -= time.monotonic() - began
            if self.left_s <= 0:
                self._free.release()
                raise UnavailableError(
                    "the server did not answer the calls before this one in time, so it was not sent; try again"
                ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._free.release()
