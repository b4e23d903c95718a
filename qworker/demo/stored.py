"""Reads from the store what has become of messages that nobody handled: dead letters, and what still waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command
from qworker.demo.account import DeadKey
from qworker.demo.app import QUEUES, app, key_of
from qworker.wire.envelope import Envelope
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from qworker.wire.keys import QueueKeys

__all__ = ["dead_keys", "keys_of_items", "waiting_keys"]

_PAGE: Final = 500


def dead_keys() -> Iterator[DeadKey]:
    """Yield every dead letter of the demo."""
    for name in QUEUES:
        after, queue = "-", app.queue(name)
        while letters := queue.dead(_PAGE, after=after):
            for letter in letters:
                key = key_of(name, letter.message.id, letter.message.body)
                yield DeadKey(key, letter.reason, letter.error_class)
            after = letters[-1].entry_id


def waiting_keys() -> frozenset[str]:
    """Return the keys of all messages in ready, delayed and leases. Not for a store with other users: it reads all."""
    found: set[str] = set()
    for name in QUEUES:
        keys = app.queue(name).keys
        for item in _stored(keys):
            found.update(keys_of_items(name, [item]))
    return frozenset(found)


def keys_of_items(queue: str, items: list[bytes]) -> Iterator[str]:
    """Yield the keys of stored items."""
    for item in items:
        envelope = Envelope.parse(item)
        if envelope is not None:
            yield key_of(queue, envelope.id, envelope.body)


def _stored(keys: QueueKeys) -> Iterator[bytes]:
    for ready in (*keys.ready, keys.suspect):
        yield from _ask("LRANGE", ready, 0, -1)
    yield from _ask("ZRANGE", keys.delayed, 0, -1)
    for lease in _ask("ZRANGE", keys.unacked, 0, -1):
        for _, item in held_items(_ask("HGETALL", keys.lease(lease.decode()))):
            yield item


def _ask(*words: str | int) -> list[bytes]:
    reply: Any = app.client.execute(Command(None, (), words, list))
    return list(reply)
