"""Errors of a queue as a whole: its existence, its shards, its limits and its keys."""

from __future__ import annotations

from qworker.errors.base import RefusedError

__all__ = [
    "BrokenQueueError",
    "QueueExistsError",
    "QueueNotFoundError",
    "ShardDrainingError",
    "ShardsChangedError",
    "TooManyLimitsError",
]


class QueueExistsError(RefusedError):
    """The queue exists already; `configure` changes or creates it."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} exists already; nothing was changed "
            f"(qworker queue set {self.queue} changes its attributes)"
        )


class QueueNotFoundError(RefusedError):
    """No queue has this name: it was never created or sent to, or was removed."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} does not exist; its first message creates it "
            f"(or qworker queue create {self.queue})"
        )


class ShardDrainingError(RefusedError):
    """The shard is draining or not open; other shards of its queue take the message, and `Queue.send` finds them.

    `active` and `epoch` are those of the reshard that drains it; `epoch` 0: never opened, or removed.
    """

    def __init__(self, shard: str, active: int = 1, epoch: int = 0) -> None:
        super().__init__(shard)
        self.shard, self.active, self.epoch = shard, active, epoch

    def __str__(self) -> str:
        queue = self.shard.partition("/")[0]
        return (
            f"shard {self.shard!r} is {'draining' if self.epoch else 'not open'} and takes no messages; nothing was "
            f"sent: send to queue {queue!r} (qworker queue shards {queue})"
        )


class ShardsChangedError(RefusedError):
    """Other clients kept resharding the queue at the same time; it now has their `active` shards."""

    def __init__(self, queue: str, active: int) -> None:
        super().__init__(queue, active)
        self.queue, self.active = queue, active

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is being resharded by another client and has {self.active} shards now; check it "
            f"(qworker queue shards {self.queue}) and try again"
        )


class TooManyLimitsError(RefusedError):
    """The queue has as many limits as it can hold: one for `*` or `acme/*` covers many groups."""

    def __init__(self, queue: str, limits: int) -> None:
        super().__init__(queue, limits)
        self.queue, self.limits = queue, limits

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} has {self.limits} limits, the maximum; set one for many groups, such as "
            "acme/*, or remove some (qworker limit rm)"
        )


class BrokenQueueError(RefusedError):
    """`key` holds the type `found`, not the one of the data model; the queue was not changed."""

    def __init__(self, key: str, found: str) -> None:
        super().__init__(key, found)
        self.key, self.found = key, found

    def __str__(self) -> str:
        return (
            f"key {self.key!r} holds a {self.found}, not what qworker stores there; "
            "nothing was changed: rename or delete the key"
        )
