"""The namespace that a dashboard shows: what the checks of the doctor need, with queues as they were sampled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qworker.client.namespace.queues import existing, named
from qworker.client.queue import Queue
from qworker.client.queue_ref import QueueRef
from qworker.errors import BrokenQueueError
from qworker.wire.names import check_queue
from qworker.wire.shards import Shards

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.inspect.peek import Inspection
    from qworker.store.nodes import Address
    from qworker.store.url import ServerURL

__all__ = ["Namespace", "SampledQueues"]


class SampledQueues:
    """The queues of a namespace; `inspect` returns the last reading of them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        #: Queues and how they are divided, as last listed.
        self.shards: dict[str, Shards] = {}
        self.inspections: dict[str, Inspection | BrokenQueueError] = {}
        self.unread: dict[str, str] = {}

    def list(self) -> dict[str, Shards]:
        """List the queues that have keys, sorted by name. Raises `ServerError`, `BrokenQueueError`."""
        names = self._client.run(named(self._namespace))
        return dict(sorted(self._client.run(existing(self._namespace, names)).items()))

    def look_up(self, names: Iterable[str]) -> dict[str, Shards]:
        """Return those of some queues that have keys, and how they are divided."""
        return self._client.run(existing(self._namespace, [*names]))

    def inspect(
        self, names: Iterable[str] | None = None, *, partial: bool = False
    ) -> dict[str, Inspection | BrokenQueueError]:
        """Return the last inspections, of all queues by default."""
        if names is None:
            return dict(self.inspections)
        return {name: self.inspections[name] for name in names if name in self.inspections}

    def get(self, name: str) -> Queue:
        """Return a queue, which need not exist. Raises `InvalidNameError`."""
        return Queue(self._client, self._namespace, check_queue(name))

    def ref(self, name: str) -> QueueRef:
        """Return a reference to a queue."""
        ref = QueueRef(self._namespace, name, self._client.ids, keyring=self._client.keyring)
        if (shards := self.shards.get(name)) is not None:
            ref.learn(shards)
        return ref

    def empty_hint(self) -> str:
        """Say that there are no queues, and how one is created."""
        return (
            f"namespace {self._namespace!r} has no queue; a queue is created by its first message: "
            "qworker send QUEUE BODY"
        )


@dataclass(slots=True)
class Namespace:
    """A namespace on a server, reached by `client`; `url` as configured, `server` as connected to."""

    namespace: str
    client: Client
    url: ServerURL
    server: ServerURL
    queues: SampledQueues = field(init=False)

    def __post_init__(self) -> None:
        self.queues = SampledQueues(self.client, self.namespace)

    def ask(self, *words: str | int | bytes, node: Address | None = None) -> Any:
        """Send one plain command, in a Cluster to one node; returns its reply."""
        return self.client.ask(*words, node=node)

    def now_ms(self) -> int:
        """Read the server's clock."""
        return self.client.now_ms()
