"""Commands that fire schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qworker.engine.arguments import given
from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys

__all__ = ["Fired", "Rule", "fire", "skip"]


@dataclass(frozen=True, slots=True)
class Rule:
    """That messages of a schedule must not overlap: they hold `key` until they end, and the tail names it.

    `overlap` says what a slot does while an earlier message holds it: `skip` notes it, `queue` leaves it unfired,
    `cancel` does too, and leaves a tombstone for that message.
    """

    key: str
    overlap: str


@dataclass(frozen=True, slots=True)
class Fired:
    """The outcome of a slot: whether this call fired it, and the id of the message that kept it out, if one did."""

    fired: bool
    holder: str = ""


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
    delay_ms: int = 0,
    rule: Rule | None = None,
    now_ms: int | None = None,
) -> Command[Fired]:
    """Send the message of one slot of a schedule, once however many callers try.

    `spec` is the schedule as its hash holds it: a schedule that has changed does not fire. `tail` is the envelope
    from the flags on. `ttl_ms` None takes the queue's, 0 is none. The message is delayed by `delay_ms`. The reply
    raises `QueuePausedError`, `QueueFullError`, `GroupFullError`, `BrokenQueueError`, or `InvalidOptionError` for a
    group in a divided queue; then the slot has not fired.
    """

    def decode(reply: Any) -> Fired:
        _, _, fired, _, holder = accepted(reply, keys.queue)
        return Fired(fired == 1, holder.decode())

    return Command(
        load_script("fire"),
        (
            keys.ready[priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.schedules,
            keys.unique,
            keys.cancelled,
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
            delay_ms,
            "" if rule is None else rule.key,
            "" if rule is None else rule.overlap,
        ),
        decode,
    )


def skip(
    keys: QueueKeys, name: str, slot_ms: int, spec: bytes, *, now_ms: int | None = None
) -> Command[Fired]:
    """Skip a slot and every earlier one; `fired` says whether it had not fired yet."""
    return fire(keys, name, slot_ms, spec, message_id="", tail=b"", now_ms=now_ms)
