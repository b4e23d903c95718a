"""What a check of a Cluster cannot read: queues whose slot no node serves, or whose node is away.

A repair leaves alone what such a queue, or a shard of it, takes part in: the part that was not read may explain the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from qworker.client.execute.backoff import AWAY
from qworker.client.namespace.queues import existing, is_queue
from qworker.client.per_shard import of_one_key
from qworker.engine.raw import raw
from qworker.errors import ClusterMovingError, QworkerError, of_one_slot
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["Unread"]

T = TypeVar("T")

_AWAY: Final = (*AWAY, ClusterMovingError)


class Unread:
    """Queues and shards that cannot be read now, and why. A single server that is away ends the check instead."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._asked: set[str] = set()
        self._reasons: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, name: str) -> bool:
        return name in self._reasons

    def ask(self, names: Iterable[str]) -> None:
        """Ask for queues and shards in one trip, which waits once for each node, and note those without an answer."""
        new = sorted({*names} - self._asked)
        self._asked.update(new)
        if not self._client.factory.clustered:
            return
        places = [QueueKeys(self._namespace, name).meta for name in new]
        answers = self._client.execute_each([raw("EXISTS", meta, decode=int) for meta in places])
        for name, answer in zip(new, answers, strict=True):
            if isinstance(answer, QworkerError) and not self.note(name, answer):
                raise answer

    def ask_with_shards(self, names: Iterable[str]) -> None:
        """Ask for queues, and for the shards that those list which answer."""
        self.ask(names)
        if self._client.factory.clustered:
            queues = [name for name in self.readable(names) if is_queue(name)]
            divisions = self._client.run(existing(self._namespace, sorted(queues)))
            self.ask(shard for name, one in divisions.items() for shard in one.names(name))

    def note(self, name: str, error: QworkerError) -> bool:
        """Note why something cannot be read; returns False if the error is not that of a node or a slot."""
        if not self._client.factory.clustered or not isinstance(error, _AWAY):
            return False
        why = "no node has it" if of_one_slot(error) else "its node is away"
        self._reasons.setdefault(name, f"{why} ({error})")
        return True

    def readable(self, names: Iterable[str]) -> set[str]:
        """Return the queues and shards that can be read."""
        return {*names} - self._reasons.keys()

    def has_part_of(self, queue: str) -> bool:
        """Whether a queue or any of its shards is among them."""
        return any(split_shard_name(name)[0] == queue for name in self._reasons)

    def unless(self, name: str, what: str, reports: Iterator[T]) -> Iterator[T | str]:
        """Make a part of the check.

        If it meets what cannot be read, that is noted for `name`; and if it meets a key of another type, a text says
        that `what` was not checked.
        """
        try:
            yield from reports
        except QworkerError as error:
            if of_one_key(error):
                yield f"{what} not checked: {error}"
            elif not self.note(name, error):
                raise

    def texts(self) -> Iterator[str]:
        """Yield a line about each."""
        for name, why in sorted(self._reasons.items()):
            yield f"{name} cannot be read: {why}"
