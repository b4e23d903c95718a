"""The queues of a namespace, as commands name, find and inspect them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from qworker.cli.framework.settings import Settings
from qworker.cli.framework.suggestions import did_you_mean, nearest
from qworker.cli.framework.terminal import note

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.inspect.peek import Inspection
    from qworker.client.queue import Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.errors import BrokenQueueError, InvalidError, QworkerError
    from qworker.store.nodes import Address
    from qworker.wire.shards import Shards

__all__ = ["Queues"]

T = TypeVar("T")

#: Names that an error lists.
_LISTED: Final = 8
#: SCANs of 1,000 keys per node: to find other namespaces, and to find queues without the index.
_NAMESPACE_SCANS: Final = 100
_QUEUE_SCANS: Final = 2000


class Queues:
    """The queues of a namespace; `connect` returns the client of its server."""

    def __init__(self, settings: Settings, connect: Callable[[], Client]) -> None:
        self._settings = settings
        self._connect = connect
        #: The queues that `names` has listed, and how they are divided.
        self.shards: dict[str, Shards] = {}
        #: Why queues are missing in the last partial `inspect`.
        self.unread: dict[str, str] = {}
        #: Why the last list of queues is not from the index.
        self.unlisted: QworkerError | None = None

    @property
    def _client(self) -> Client:
        return self._connect()

    @property
    def _namespace(self) -> str:
        return self._settings.namespace

    def names(self) -> list[str]:
        """List the queues that have keys, sorted: from the index, or from the keys if the index cannot be used."""
        from qworker.client.namespace.queues import MAX_ABSENT, listed
        from qworker.errors import BrokenQueueError, InDoubtError, LoadingError, UnavailableError

        try:
            self.shards = self._client.run(listed(self._namespace, most_absent=MAX_ABSENT))
            self.unlisted = None
        except BrokenQueueError as error:
            self.shards = self._from_keys(error)
        except (UnavailableError, InDoubtError, LoadingError) as error:
            # In a Cluster the node of the index may be away alone.
            if not self._client.factory.clustered:
                raise
            self.shards = self._from_keys(error)
        return sorted(self.shards)

    def get(self, name: str, field: str = "queue") -> Queue:
        """Return a queue that exists, or a shard of one: `queue/3`.

        Raises `InvalidNameError`, and `InvalidOptionError`, of `field`, if it does not exist.
        """
        from qworker.client.queue import Queue
        from qworker.wire.names import check_queue_or_shard

        check_queue_or_shard(name)
        if not self.exists(name):
            raise self._unknown(name, field)
        return Queue(self._client, self._namespace, name)

    def ref(self, name: str) -> QueueRef:
        """Return a reference to a queue, which need not exist."""
        from qworker.client.queue_ref import QueueRef

        ref = QueueRef(self._namespace, name, self._client.ids, keyring=self._client.keyring)
        if (shards := self.shards.get(name)) is not None:
            ref.learn(shards)
        return ref

    def exists(self, name: str) -> bool:
        """Whether a queue, or a shard, has any keys."""
        from qworker.wire.keys import QueueKeys

        return bool(self._client.ask("EXISTS", *QueueKeys(self._namespace, name).all()))

    def note_if_new(self, name: str) -> None:
        """Note that a queue does not exist yet, and which one has a similar name."""
        if not self.exists(name):
            near = nearest(name, self.names())
            note(f"note: queue {name!r} is new" + (f"; did you mean {near!r}?" if near else ""))

    def inspect(
        self, names: Iterable[str] | None = None, *, partial: bool = False
    ) -> dict[str, Inspection | BrokenQueueError]:
        """Inspect queues, all unless some are named, their shards added up; a broken one gives its error.

        `partial`: in a Cluster, leave out queues whose node is away, and name them in `unread`; waits once for each.
        Raises the error of a node if no queue can be read.
        """
        from qworker.client.inspect.peek import inspect
        from qworker.errors import (
            BrokenQueueError,
            InDoubtError,
            LoadingError,
            UnavailableError,
            of_one_slot,
        )
        from qworker.wire.keys import QueueKeys

        inspections: dict[str, Inspection | BrokenQueueError] = {}
        self.unread = {}
        away: dict[Address | None, UnavailableError | InDoubtError | LoadingError] = {}
        factory = self._client.factory
        for name in self.names() if names is None else names:
            key = QueueKeys(self._namespace, name).meta
            node = factory.last_node(key)
            try:
                if node in away:
                    raise away[node]
                inspections[name] = self._client.run(inspect(self.ref(name)))
            except BrokenQueueError as error:
                inspections[name] = error
            except (UnavailableError, InDoubtError, LoadingError) as error:
                if not partial or not factory.clustered:
                    raise
                # If no node serves the slot, the other queues of the node that had it are read.
                known = node in away
                node = None if of_one_slot(error) else factory.last_node(key)
                away.setdefault(node, error)
                named = f"its node {node} is away" if node else "no node has it"
                # The error of another queue names another slot.
                self.unread[name] = named if known and not node else f"{named} ({error})"
        if away and not inspections:
            raise next(iter(away.values()))
        return inspections

    def readable(self) -> Iterator[tuple[str, Inspection]]:
        """Inspect all queues; a broken one, or one whose node is away, is skipped with a warning."""
        from qworker.errors import BrokenQueueError

        inspections = self.inspect(partial=True)
        for name, problem in self.unread.items():
            note(f"warning: skipped queue {name}: {problem}")
        for name, inspection in inspections.items():
            if isinstance(inspection, BrokenQueueError):
                note(f"warning: skipped queue {name}: {inspection}")
            else:
                yield name, inspection

    def searched(self, only: str | None) -> Iterator[Queue]:
        """Yield the queue that was named, else all that can be read."""
        for name in (only,) if only is not None else (name for name, _ in self.readable()):
            yield self.get(name)

    def find(self, only: str | None, read: Callable[[Queue], T | None]) -> tuple[Queue, T] | None:
        """Search the queue that was named, else all: return the first in which `read` finds it.

        Of all queues those that cannot be read are named; one with a key of another type is searched nevertheless.
        """
        from qworker.client.per_shard import of_one_key
        from qworker.errors import QworkerError

        names = [only] if only is not None else [*self.inspect(partial=True)]
        problems = {} if only is not None else dict(self.unread)
        for name in names:
            queue = self.get(name)
            try:
                found = read(queue)
            except QworkerError as error:
                if only is not None or not of_one_key(error):
                    raise
                problems[name] = str(error)
            else:
                if found is not None:
                    return queue, found
        for name, problem in problems.items():
            note(f"warning: queue {name} cannot be searched whole: {problem}")
        return None

    def scope(self, only: str | None) -> str:
        """Say where `find` has searched."""
        return f"queue {only!r}" if only else f"the queues of namespace {self._namespace!r}"

    def empty_hint(self) -> str:
        """Say that the namespace has no queue, and which other namespaces have."""
        others = self._other_namespaces()
        text = f"namespace {self._namespace!r} has no queue"
        if not others:
            return f"{text}; a queue is created by its first message: qworker send QUEUE BODY"
        return (
            f"{text}; other namespaces on this server have: {_listed(others)} "
            f"(--namespace {others[0]}, or QWORKER_NAMESPACE)"
        )

    def _unknown(self, name: str, field: str = "queue") -> InvalidError:
        from qworker.errors import InvalidOptionError

        known = self.names()
        listing = f"queues are {_listed(known)} (qworker queue ls)" if known else self.empty_hint()
        limit = did_you_mean(name, known, listing)
        return InvalidOptionError(field, f"{name!r} does not exist", limit)

    def _from_keys(self, problem: QworkerError) -> dict[str, Shards]:
        """Find queues by their keys on the nodes that answer, and say why."""
        from qworker.client.namespace.queues import existing
        from qworker.client.namespace.scan import find_queues

        if self.unlisted is None:
            note(f"the index of queues cannot be used ({problem}): scanning the keys instead")
        self.unlisted = problem
        names = find_queues(self._client, self._namespace, _QUEUE_SCANS, note)
        return self._client.run(existing(self._namespace, names))

    def _other_namespaces(self) -> list[str]:
        """Name other namespaces that have queues on the server, as far as a bounded scan finds them."""
        from qworker.client.namespace.scan import scan_keys
        from qworker.errors import ServerError

        names: set[str] = set()
        try:
            for node in self._client.factory.masters():
                scan_keys(
                    self._client,
                    node,
                    "*:queues",
                    _NAMESPACE_SCANS,
                    lambda key: names.add(key.removesuffix(":queues")),
                )
        except ServerError:
            return []  # The ACL forbids SCAN.
        return sorted(name for name in names if _is_namespace(name) and name != self._namespace)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def _is_namespace(name: str) -> bool:
    """Whether a part of a key, which any client may have written, can be offered for `--namespace`."""
    from qworker.errors import InvalidNameError
    from qworker.wire.names import check_namespace

    try:
        check_namespace(name)
    except InvalidNameError:
        return False
    return True
