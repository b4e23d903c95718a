"""The namespace that a dashboard shows: what the checks of the doctor need, with queues as they were sampled."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.single_wait import WatchingClient
from qworker.client.namespace.queues import MAX_ABSENT, existing, listed
from qworker.client.namespace.scan import find_queues
from qworker.client.queue import Queue
from qworker.client.queue_ref import QueueRef
from qworker.errors import BrokenQueueError, QworkerError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue
from qworker.wire.shards import Shards

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.inspect.peek import Inspection
    from qworker.store.nodes import Address
    from qworker.store.url import ServerURL

__all__ = ["Namespace", "SampledQueues"]


#: Seconds between two scans for queues while their index cannot be read, and SCANs of 1,000 keys per node.
_SCAN_AGAIN_S: Final = 60.0
_SCANS: Final = 200


class SampledQueues:
    """The queues of a namespace; `inspect` returns the last reading of them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        #: Queues and how they are divided, as last listed.
        self.shards: dict[str, Shards] = {}
        self.inspections: dict[str, Inspection | BrokenQueueError] = {}
        self.unread: dict[str, str] = {}
        #: Why the last list of queues is not from the index.
        self.unlisted: QworkerError | None = None
        self._scan_s = 0.0

    def list(self) -> dict[str, Shards]:
        """List the queues that have keys, sorted by name. Raises `ServerError`.

        If the index is broken, or its node of a Cluster is away, the queues that are known, and those that a scan of
        the keys finds once a minute.
        """
        self.unlisted = None
        try:
            found = self._client.run(listed(self._namespace, most_absent=MAX_ABSENT))
        except (*AWAY, BrokenQueueError) as error:
            if not isinstance(error, BrokenQueueError) and not self._client.factory.clustered:
                raise
            self.unlisted = error
            found = self.look_up([*self.shards])
            if time.monotonic() >= self._scan_s:
                names = find_queues(self._client, self._namespace, _SCANS, lambda line: None)
                found |= self.look_up([name for name in names if name not in found])
                self._scan_s = time.monotonic() + _SCAN_AGAIN_S
        else:
            self._keep_known(found)
        return dict(sorted(found.items()))

    def look_up(self, names: Iterable[str]) -> dict[str, Shards]:
        """Return those of some queues that have keys, and how they are divided."""
        found = self._client.run(existing(self._namespace, [*names]))
        self._keep_known(found)
        return found

    def _keep_known(self, found: dict[str, Shards]) -> None:
        """Keep what is known of queues whose node is away: they count as not divided."""
        if self._client.factory.clustered:
            for name, shards in found.items():
                known = self.shards.get(name)
                if known is not None and not shards.epoch and self.node_away(name):
                    found[name] = known

    @property
    def away(self) -> bool:
        """Whether a node of a Cluster did not serve when it was last asked."""
        return isinstance(self._client, WatchingClient) and bool(self._client.away)

    def node_away(self, name: str) -> Address | None:
        """Return the node of a Cluster that has a queue's first shard if it is away."""
        if not isinstance(self._client, WatchingClient):
            return None
        node = self._client.factory.last_node(QueueKeys(self._namespace, name).meta)
        return node if node in self._client.away else None

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

    def note(self, verb: str, key: str, *words: str | int | bytes) -> Any:
        """Send one plain command that a full server takes too; returns its reply."""
        return self.client.note(verb, key, *words)

    def now_ms(self) -> int:
        """Read the server's clock."""
        return self.client.now_ms()

    def spent_s(self) -> float:
        """Return the seconds for which this thread has kept servers and this process busy so far.

        Readings rest in proportion to that. The network has no part in it, so that a server that is far away is read as
        often as a near one. With a client that does not tell, all time counts.
        """
        client = self.client
        if isinstance(client, WatchingClient):
            return client.busy_s + time.thread_time()
        return time.monotonic()
