"""Commands that fire schedules."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys

__all__ = ["fire", "skip"]


def fire(
    keys: QueueKeys,
    name: str,
    slot_ms: int,
    spec: bytes,
    *,
    message_id: str,
    tail: bytes,
    priority: int = 0,
    ttl_ms: int | None = None,
    now_ms: int | None = None,
) -> Command[bool]:
    """Send the message of one slot of a schedule, once however many try.

    `spec` is the schedule as its hash holds it: one that was changed meanwhile does not fire. `tail` is the envelope
    from the flags on. `ttl_ms` None takes the queue's, 0 is none. Returns whether this call fired it. The reply raises
    `QueuePausedError`, `QueueFullError` or `BrokenQueueError`; then the slot is still to be fired.
    """

    def decode(reply: Any) -> bool:
        return bool(accepted(reply, keys.queue)[2] == 1)

    return Command(
        load_script("fire"),
        (
            keys.ready[priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.schedules,
            keys.journal,
        ),
        (
            "" if now_ms is None else now_ms,
            name,
            slot_ms,
            spec,
            priority,
            "" if ttl_ms is None else ttl_ms,
            head(message_id),
            tail,
        ),
        decode,
    )


def skip(
    keys: QueueKeys, name: str, slot_ms: int, spec: bytes, *, now_ms: int | None = None
) -> Command[bool]:
    """Note that a slot, and every earlier one, is not going to fire. Returns whether it was still to be fired."""
    return fire(keys, name, slot_ms, spec, message_id="", tail=b"", now_ms=now_ms)
