"""Commands that make queues and set their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Apart, Command, Word
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["configure", "create", "shed"]


def create(keys: QueueKeys, attributes: Mapping[str, str]) -> Command[int]:
    """Make a queue with attributes as stored in meta. Returns the server's time in ms.

    The reply raises `QueueExistsError` where the queue has any key.
    """
    words: list[Word] = []
    for name, value in attributes.items():
        words += (name, value)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(load_script("create"), standard_keys(keys), tuple(words), decode)


def configure(
    keys: QueueKeys, attributes: dict[str, str], *, now_ms: int | None = None
) -> Command[int]:
    """Set attributes as stored in meta; '' removes one. Returns the server's time in ms."""
    words: list[Word] = []
    for name, value in attributes.items():
        words += (name, value)

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(
        load_script("configure"), (keys.meta, keys.wake), (given(now_ms), *words), decode
    )


def shed(queues: Sequence[QueueKeys], *, on: bool, now_ms: int | None = None) -> Command[int]:
    """Stop writing the journals of up to `MAX_SWEPT` queues, or go on; returns of how many that was a change."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, "")[2])

    def apart() -> Apart[int]:
        # Those of a node that does not serve are told again: a daemon tells all queues every 10 s.
        each = [shed([keys], on=on, now_ms=now_ms) for keys in queues]
        return Apart(each, sum, lambda number, error: 0)

    return Command(
        load_script("shed"),
        tuple(keys.meta for keys in queues),
        (given(now_ms), int(on)),
        decode,
        apart=apart if len(queues) > 1 else None,
    )
