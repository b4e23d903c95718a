r"""Messages in the keys of Celery's Redis broker (kombu 5).

_kombu.binding.<exchange>   SET of `<routing key>\x06\x16<pattern>\x06\x16<queue>`
<queue>                     LIST of messages, the next one at the right; of priority 0, which is served first
<queue>\x06\x16<1-9>        LISTs of the lower priorities, by default 3, 6 and 9
unacked                     HASH delivery tag → JSON of message, exchange, routing key
unacked_index               ZSET delivery tag → s since 1970 at which it was delivered
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from qworker.importers.celery_messages import MessageReader, decoded
from qworker.importers.source import SourceKey, SourceMessage, SourceQueue, State
from qworker.importers.task_names import TaskNames

__all__ = ["Celery"]

_SEPARATOR: Final = "\x06\x16"
_BINDING: Final = "_kombu.binding."
#: Parts of the names of queues over which workers talk to each other.
_INTERNAL: Final = ("pidbox", "celeryev")


class Celery:
    """The queues of a Celery broker.

    `in_flight`: also move messages that a worker has taken and not acknowledged; `drop_callbacks`: move messages with
    links, chains and chords, without these.
    """

    system = "celery"

    def __init__(
        self,
        redis: Any,
        tasks: TaskNames,
        *,
        in_flight: bool = False,
        drop_callbacks: bool = False,
        prefix: str = "",
    ) -> None:
        """Take the client; `prefix` is Celery's `global_keyprefix`."""
        self._redis = redis
        self._prefix = prefix
        self._in_flight = in_flight
        self._reader = MessageReader(tasks, drop_callbacks=drop_callbacks)

    def queues(self) -> list[str]:
        """Return the queues that are bound to an exchange, without those that workers talk over. O(keys)."""
        names = {name for _, _, name in self._bindings}
        return sorted(name for name in names if not any(word in name for word in _INTERNAL))

    def queue(self, name: str) -> SourceQueue:
        """Open a queue. If it has lists of lower priorities, 0 becomes our 9, 3 our 6, and so on."""
        key = self._prefix + name
        pipe = self._redis.pipeline(transaction=False)
        for step in range(1, 10):
            pipe.exists(f"{key}{_SEPARATOR}{step}")
        lower = [step for step, exists in enumerate(pipe.execute(), 1) if exists]
        lists: list[SourceKey] = [_List(self, key, name, 9 if lower else 0)]
        lists += [_List(self, f"{key}{_SEPARATOR}{step}", name, 9 - step) for step in lower]
        taken = _Unacked(self, self._prefix, name, lists[0].priority)
        if self._in_flight:
            return SourceQueue(name, [taken, *lists])
        in_flight = taken.size()
        return SourceQueue(name, lists, left={"in_flight": in_flight} if in_flight else {})

    def consumers(self) -> int | None:
        """Count the connections that wait for messages as Celery's workers do; None if that is forbidden."""
        from redis.exceptions import RedisError

        try:
            clients: list[dict[str, str]] = self._redis.client_list()
        except RedisError:
            return None
        return sum(client.get("cmd", "").lower() == "brpop" for client in clients)

    # -- for its keys ----------------------------------------------------------------------------

    def queue_of(self, raw: bytes) -> str:
        """Return the queue of a value of `unacked`, by its binding, else its routing key, which is a queue's name."""
        match decoded(raw):
            case [dict(), exchange, str(routing_key)]:
                for bound, key, name in self._bindings:
                    if (bound, key) == (exchange, routing_key):
                        return name
                return routing_key
        return ""

    @cached_property
    def _bindings(self) -> list[tuple[str, str, str]]:
        """Exchange, routing key and queue of each binding."""
        bindings = []
        start = self._prefix + _BINDING
        for key in sorted(self._redis.scan_iter(match=f"{start}*", count=1000)):
            exchange = key.decode("utf-8", "replace").removeprefix(start)
            for member in sorted(self._redis.smembers(key)):
                parts = member.decode("utf-8", "replace").split(_SEPARATOR)
                bindings.append((exchange, parts[0], parts[-1]))
        return bindings

    @property
    def redis(self) -> Any:
        """The client."""
        return self._redis

    def message(
        self, raw: bytes, handle: Any, queue: str, state: State, now_ms: int, wrapped: bool
    ) -> SourceMessage:
        """Read a message; `wrapped`: `raw` is a value of `unacked`."""
        return self._reader.message(raw, handle, queue, state, now_ms, wrapped=wrapped)


class _List:
    """The messages of one priority."""

    def __init__(self, broker: Celery, key: str, queue: str, priority: int) -> None:
        self._broker, self._key, self._queue, self.priority = broker, key, queue, priority

    def size(self) -> int:
        """Count the messages."""
        return int(self._broker.redis.llen(self._key))

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read messages from the right."""
        pipe = self._broker.redis.pipeline(transaction=False)
        pipe.lrange(self._key, -(start + count), -(start + 1)).time()
        messages, now = pipe.execute()
        return [
            self._broker.message(raw, raw, self._queue, State.READY, _ms(now), wrapped=False)
            for raw in reversed(messages)
        ]

    def remove_originals(self, messages: Sequence[SourceMessage]) -> int:
        """Remove messages; each is searched from the right."""
        pipe = self._broker.redis.pipeline(transaction=True)
        for message in messages:
            pipe.lrem(self._key, -1, message.handle)
        return sum(pipe.execute())


class _Unacked:
    """Messages of one queue that workers have taken; `unacked` holds those of all queues."""

    def __init__(self, broker: Celery, prefix: str, queue: str, priority: int) -> None:
        self._broker, self._queue, self.priority = broker, queue, priority
        self._key, self._index = f"{prefix}unacked", f"{prefix}unacked_index"
        self._tags: list[bytes] | None = None

    def size(self) -> int:
        """Count the messages of the queue."""
        return len(self._tags_of_queue())

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read messages, the earliest delivery first."""
        tags = self._tags_of_queue()[start : start + count]
        if not tags:
            return []
        pipe = self._broker.redis.pipeline(transaction=False)
        pipe.hmget(self._key, tags).time()
        values, now = pipe.execute()
        return [
            self._broker.message(
                raw or b"", tag, self._queue, State.IN_FLIGHT, _ms(now), wrapped=True
            )
            for tag, raw in zip(tags, values, strict=True)
        ]

    def remove_originals(self, messages: Sequence[SourceMessage]) -> int:
        """Remove messages as an acknowledgement does."""
        pipe = self._broker.redis.pipeline(transaction=True)
        for message in messages:
            pipe.hdel(self._key, message.handle).zrem(self._index, message.handle)
            if self._tags:
                self._tags.remove(message.handle)
        return sum(pipe.execute()[::2])

    def _tags_of_queue(self) -> list[bytes]:
        """Return the delivery tags of the queue, read once: there are as many as the workers prefetch."""
        if self._tags is None:
            self._tags = []
            tags = self._broker.redis.zrange(self._index, 0, -1)
            for first in range(0, len(tags), 500):
                page = tags[first : first + 500]
                values = self._broker.redis.hmget(self._key, page)
                for tag, raw in zip(page, values, strict=True):
                    if raw is not None and self._broker.queue_of(raw) == self._queue:
                        self._tags.append(tag)
        return self._tags


def _ms(now: tuple[int, int]) -> int:
    return now[0] * 1000 + now[1] // 1000
