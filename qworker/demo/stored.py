"""Reads the messages from the store that were not handled: dead letters, and those that still wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qworker.demo.account import DeadKey
from qworker.demo.app import QUEUES, app, key_of
from qworker.wire.envelope import Envelope

__all__ = ["dead_keys", "keys_of_items", "waiting_keys"]

_PAGE: Final = 500


def dead_keys() -> Iterator[DeadKey]:
    """Yield every dead letter of the demo."""
    for name in QUEUES:
        after, queue = "-", app.queue(name)
        while dead_letters := queue.dead(_PAGE, after=after):
            for dead_letter in dead_letters:
                key = key_of(name, dead_letter.message.id, dead_letter.message.body)
                yield DeadKey(key, dead_letter.reason, dead_letter.error_class)
            after = dead_letters[-1].entry_id


def waiting_keys() -> frozenset[str]:
    """Return the keys of all messages in ready, delayed and leases."""
    return frozenset(
        key_of(name, message.id, message.body)
        for name in QUEUES
        for message in app.queue(name).scan("ready", "delayed", "unacked")
    )


def keys_of_items(queue: str, items: list[bytes]) -> Iterator[str]:
    """Yield the keys of stored items."""
    for item in items:
        envelope = Envelope.parse(item)
        if envelope is not None:
            yield key_of(queue, envelope.id, envelope.body)
