"""Commands that fire schedules."""

from __future__ import annotations

from typing import Any

from qworker.engine.arguments import given
from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
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
    """Send the message of one slot of a schedule, once however many callers try.

    `spec` is the schedule as its hash holds it: a schedule that has changed does not fire. `tail` is the envelope
    from the flags on. `ttl_ms` None takes the queue's, 0 is none. Returns whether this call fired it. The reply raises
    `QueuePausedError`, `QueueFullError` or `BrokenQueueError`; then the slot has not fired.
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
            given(now_ms),
            name,
            slot_ms,
            spec,
            priority,
            given(ttl_ms),
            head(message_id),
            tail,
        ),
        decode,
    )


def skip(
    keys: QueueKeys, name: str, slot_ms: int, spec: bytes, *, now_ms: int | None = None
) -> Command[bool]:
    """Skip a slot and every earlier one. Returns whether it had not fired yet."""
    return fire(keys, name, slot_ms, spec, message_id="", tail=b"", now_ms=now_ms)
