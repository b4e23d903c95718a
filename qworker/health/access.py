"""The access that checks need: a server, its queues, and plain commands. A CLI session provides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from qworker.client.namespace.workers import Asks

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.inspect.peek import Inspection
    from qworker.client.queue import Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.errors import BrokenQueueError, QworkerError
    from qworker.store.url import ServerURL
    from qworker.wire.shards import Shards

__all__ = ["NamespaceAccess"]


class Queues(Protocol):
    """The queues of a namespace."""

    @property
    def unread(self) -> Mapping[str, str]:
        """Why queues are missing in the last partial `inspect`."""

    @property
    def shards(self) -> Mapping[str, Shards]:
        """The queues that were last listed, and how they are divided."""

    @property
    def unlisted(self) -> QworkerError | None:
        """Why the last list of queues is not from the index."""

    def inspect(
        self, names: Iterable[str] | None = None, *, partial: bool = False
    ) -> dict[str, Inspection | BrokenQueueError]:
        """Inspect queues, all by default; a broken one gives its error. `partial`: leave out those of a node away."""

    def get(self, name: str) -> Queue:
        """Return an existing queue."""

    def ref(self, name: str) -> QueueRef:
        """Return a reference to a queue."""

    def empty_hint(self) -> str:
        """Explain why there may be no queues."""


class NamespaceAccess(Asks, Protocol):
    """A namespace on a server."""

    @property
    def url(self) -> ServerURL:
        """The server as configured."""

    @property
    def server(self) -> ServerURL:
        """The server itself: for an embedded store, the one that was started."""

    @property
    def client(self) -> Client:
        """A client of the server."""

    @property
    def queues(self) -> Queues:
        """The queues of the namespace."""
