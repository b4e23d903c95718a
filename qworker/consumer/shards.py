"""The shards of a worker's queues: children receive from all of them, and are replaced when there are others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from qworker.client.commands.sharding import read_shards as read_command
from qworker.client.queue_ref import QueueRef
from qworker.errors import QworkerError, concerns_the_call
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Shards

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["ShardWatch", "read_shards"]

#: How often a worker looks whether its queues have other shards.
_EVERY_S: Final = 4.0
_PATIENCE_S: Final = 1.0


def read_shards(client: Client, namespace: str, queues: Sequence[str]) -> dict[str, Shards | None]:
    """Read how queues are divided, in the order of the queues, in one trip per node.

    None for one that cannot be asked now: its node of a Cluster is away. Raises `ServerError` where that is so of all.
    """
    asked = [read_command(QueueKeys(namespace, queue)) for queue in queues]
    answers = client.execute_each(asked, give_up_s=_PATIENCE_S)
    found: dict[str, Shards | None] = {}
    for queue, answer in zip(queues, answers, strict=True):
        if not isinstance(answer, QworkerError):
            found[queue] = answer
        # Of a queue whose meta holds another type nothing can be received: the first call of a child says so.
        else:
            found[queue] = WHOLE if concerns_the_call(answer) else None
    failures = [each for each in answers if isinstance(each, QworkerError)]
    if failures and all(each is None for each in found.values()):
        raise failures[0]
    return found


class ShardWatch:
    """Looks every few seconds whether queues have other shards than those that are received from.

    A queue that knows less than before (its server has lost what it held) takes back what its shards remember.
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
        self._look_at = 0.0

    def changed(self) -> bool:
        """Say once of each change that there was one. Raises `ServerError`."""
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + _EVERY_S
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
