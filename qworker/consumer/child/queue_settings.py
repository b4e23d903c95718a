"""Reads from the server what a child has to know before it receives: shards, attributes and paused tasks.

If the server does not answer now, the child starts with defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.client.execute.sync import Client
from qworker.client.namespace.paused_tasks import read_paused_tasks
from qworker.consumer.shards import read_shards
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw, server_time
from qworker.errors import QworkerError, ServerError
from qworker.telemetry.logger import logger
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole
from qworker.wire.shards import WHOLE

if TYPE_CHECKING:
    from qworker.engine.command import Command
    from qworker.store.connections import ConnectionFactory

__all__ = ["QueueSettings", "open_client", "read_paused_for", "read_settings", "read_shard_names"]

_log = logger(__name__)

_GIVE_UP_S: Final = 2.0
_AT_ONCE: Final = 500


class QueueSettings(msgspec.Struct, frozen=True):
    """The attributes of a queue that a child needs."""

    visibility_ms: int
    max_receives: int


def open_client(factory: ConnectionFactory) -> Client:
    """Open the client for all that a child reads before it receives; you close it."""
    return Client(factory, give_up_s=_GIVE_UP_S)


def read_shard_names(client: Client, namespace: str, queues: Sequence[str]) -> list[str]:
    """Read the names of the shards of queues, best first; those of undivided queues if the server does not answer.

    The supervisor reads them again, and replaces a child that receives from other shards.
    """
    try:
        shards = read_shards(client, namespace, queues)
    except QworkerError as error:
        _log.warning("shards_unknown", error=str(error))
        return list(queues)
    return [name for queue, known in shards.items() for name in (known or WHOLE).names(queue)]


def read_settings(
    client: Client, namespace: str, queues: Sequence[str]
) -> dict[str, QueueSettings]:
    """Read the attributes of queues, 500 in a trip; the defaults if the server does not answer."""
    defaults = QueueAttributes()
    plain = QueueSettings(defaults.visibility_ms, defaults.max_receives)
    settings = dict.fromkeys(queues, plain)
    for first in range(0, len(queues), _AT_ONCE):
        names = queues[first : first + _AT_ONCE]
        replies = client.execute_each([_read_one(namespace, name, plain) for name in names])
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, QueueSettings):
                settings[name] = reply
                continue
            _log.warning("attributes_unknown", queue=name, error=str(reply))
            if isinstance(reply, ServerError):
                return settings  # the other calls would fail in the same way
    return settings


def read_paused_for(client: Client, namespace: str) -> dict[str, float]:
    """Read for how many seconds tasks have been paused; none if the server does not answer."""
    try:
        paused = read_paused_tasks(client.execute, namespace)
        now_ms = client.execute(server_time()) if paused else 0
    except QworkerError as error:
        _log.warning("paused_tasks_unknown", error=str(error))
        return {}
    return {task: max(0, now_ms - at_ms) / 1000 for task, at_ms in paused.items()}


def _read_one(namespace: str, queue: str, plain: QueueSettings) -> Command[QueueSettings]:
    def decode(reply: list[bytes | None]) -> QueueSettings:
        visibility_ms, max_receives = map(whole, reply)
        return QueueSettings(
            plain.visibility_ms if visibility_ms is None else visibility_ms,
            plain.max_receives if max_receives is None else max_receives,
        )

    words = ("HMGET", QueueKeys(namespace, queue).meta, "visibility_ms", "max_receives")
    return raw(*words, decode=decode)
