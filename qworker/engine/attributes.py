"""Commands that create queues and set their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["configure", "create"]


def create(keys: QueueKeys, attributes: Mapping[str, str]) -> Command[int]:
    """Create a queue with attributes as stored in meta. Returns the server's time in ms.

    The reply raises `QueueExistsError` if the queue has any key.
    """
    words: list[Word] = []
    for name, value in attributes.items():
        words += (name, value)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(load_script("create"), standard_keys(keys), tuple(words), decode)


def configure(
    keys: QueueKeys, attributes: Mapping[str, str], *, now_ms: int | None = None
) -> Command[int]:
    """Set attributes as stored in meta; '' removes one. Returns the server's time in ms.

    A change of the mode of a journal that was written before is an event `mode` in it.
    """
    words: list[Word] = []
    for name, value in attributes.items():
        words += (name, value)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(
        load_script("configure"),
        (keys.meta, keys.wake, keys.stats, keys.journal),
        (given(now_ms), *words),
        decode,
    )
