"""The shards of a worker's queues: children receive from all of them, and are replaced when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from qworker.client.execute.recurring import WITHIN_S
from qworker.client.queue_ref import QueueRef
from qworker.engine.shards import have_attributes
from qworker.engine.shards import read_shards as read_command
from qworker.errors import QworkerError, concerns_the_call
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Shards

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["ShardWatch", "read_shards"]

#: How often a worker checks the shards of its queues.
_EVERY_S: Final = 4.0
_PATIENCE_S: Final = 1.0
#: Number of queues that one call asks whether any of them has attributes, its division among them.
_TOGETHER: Final = 100


def read_shards(client: Client, namespace: str, queues: Sequence[str]) -> dict[str, Shards | None]:
    """Read how queues are divided, in the order of the queues, in one trip per node.

    None for a queue whose node of a Cluster is away. Raises `ServerError` if all of them are.
    """
    shards: dict[str, Shards | None] = dict.fromkeys(queues)
    asked = _with_attributes(client, namespace, queues)
    shards.update((queue, WHOLE) for queue in shards.keys() - asked)
    commands = [read_command(QueueKeys(namespace, queue)) for queue in asked]
    within_s = WITHIN_S if client.factory.clustered else None
    replies = client.execute_each(commands, give_up_s=_PATIENCE_S, within_s=within_s)
    for queue, reply in zip(asked, replies, strict=True):
        if not isinstance(reply, QworkerError):
            shards[queue] = reply
        # A queue whose meta has another type cannot be received from: the first call of a child reports it.
        else:
            shards[queue] = WHOLE if concerns_the_call(reply) else None
    failures = [reply for reply in replies if isinstance(reply, QworkerError)]
    if failures and all(known is None for known in shards.values()):
        raise failures[0]
    return shards


def _with_attributes(client: Client, namespace: str, queues: Sequence[str]) -> Sequence[str]:
    """Leave out queues without attributes, among many; in a Cluster, where each may be in another slot, none."""
    if len(queues) <= _TOGETHER or client.factory.clustered:
        return queues
    groups = [queues[first : first + _TOGETHER] for first in range(0, len(queues), _TOGETHER)]
    counts = client.execute_each(
        [have_attributes([QueueKeys(namespace, queue) for queue in group]) for group in groups],
        give_up_s=_PATIENCE_S,
    )
    # Where that fails, the queues themselves say why.
    return [queue for group, count in zip(groups, counts, strict=True) if count for queue in group]


class ShardWatch:
    """Checks every few seconds whether queues have other shards than those that are received from.

    A queue that knows fewer than before, because its server has lost data, is restored from the marks of its shards.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        queues: Sequence[str],
        received: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._queues = {queue: QueueRef(namespace, queue, client.ids) for queue in queues}
        self._received = list(received)
        self._clock = clock
        self._next_at = 0.0

    def changed(self) -> bool:
        """Whether the shards have changed since the last call. Raises `ServerError`."""
        now = self._clock()
        if now < self._next_at:
            return False
        self._next_at = now + _EVERY_S
        for queue, shards in read_shards(self._client, self._namespace, [*self._queues]).items():
            ref = self._queues[queue]
            if shards is not None and shards.epoch >= ref.shards.epoch:
                ref.learn(shards)
            elif shards is not None:
                healed = ref.healed(shards, range(1, ref.shards.kept))
                ref.learn(self._client.run(healed))
        before = self._received
        self._received = [
            name for queue, ref in self._queues.items() for name in ref.shards.names(queue)
        ]
        return self._received != before
