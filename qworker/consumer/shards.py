"""The shards of a worker's queues: children receive from all of them, and are replaced when there are others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command
from qworker.client.commands.registering import register
from qworker.wire.keys import queues_key
from qworker.wire.shards import WHOLE, Shards

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["ShardWatch", "read_shards"]

#: How often a worker looks whether its queues have other shards.
_EVERY_S: Final = 4.0
_PATIENCE_S: Final = 1.0


def read_shards(client: Client, namespace: str, queues: Sequence[str]) -> dict[str, Shards]:
    """Read how queues are divided, in the order of the queues. Raises `ServerError`."""
    words = ("HMGET", queues_key(namespace), *queues)
    command: Command[list[Any]] = Command(None, (), words, list)
    written = client.execute(command, give_up_s=_PATIENCE_S)
    return {
        queue: Shards.parse(shards) or WHOLE for queue, shards in zip(queues, written, strict=True)
    }


class ShardWatch:
    """Looks every few seconds whether queues have other shards than those that are received from.

    A registry that knows less than before (its server has lost what it held) is told.
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
        self._queues = queues
        self._received = list(received)
        self._known = dict.fromkeys(queues, WHOLE)
        self._clock = clock
        self._look_at = 0.0

    def changed(self) -> bool:
        """Say once of each change that there was one. Raises `ServerError`."""
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + _EVERY_S
        for queue, shards in read_shards(self._client, self._namespace, self._queues).items():
            if shards.epoch >= self._known[queue].epoch:
                self._known[queue] = shards
            else:
                told = register(queues_key(self._namespace), queue, self._known[queue])
                self._known[queue] = self._client.execute(told, give_up_s=_PATIENCE_S)
        before = self._received
        self._received = [
            name for queue in self._queues for name in self._known[queue].names(queue)
        ]
        return self._received != before
