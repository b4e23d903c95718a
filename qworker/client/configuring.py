"""The attributes of a queue: making it with some, reading and changing them, pausing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qworker.client import looking
from qworker.client.commands import configuring
from qworker.client.options import QueueAttributes
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.fields import kinds_of, unknown_option
from qworker.errors import InvalidOptionError, QueueNotFoundError

__all__ = ["attributes", "change", "configure", "create", "pause", "resume"]

_DIRECTIONS: Final = ("in", "out", "all", "none", "state")


def create(
    queue: QueueRef, /, attributes: QueueAttributes | None = None, **given: object
) -> Plan[None]:
    """Make the queue, with attributes by value or by keyword.

    Nothing needs it: a queue comes to be by its first message. Raises `QueueExistsError`; after a lost reply
    `InDoubtError`, for it may be ours that is there.
    """
    chosen = _changed(attributes or QueueAttributes(), given).meta()
    yield configuring.create(queue.keys, _but(chosen, QueueAttributes().meta()))
    yield from queue.announce()


def attributes(queue: QueueRef) -> Plan[QueueAttributes]:
    """Read the attributes; totals and times are in `inspect`. Raises `QueueNotFoundError`."""
    seen = yield from looking.inspect(queue)
    if not seen.exists:
        raise QueueNotFoundError(queue.keys.queue)
    return QueueAttributes.of_meta(seen.meta)


def change(queue: QueueRef, /, **changes: object) -> Plan[QueueAttributes]:
    """Change some attributes and leave the others; returns all. Raises `QueueNotFoundError`, `InvalidOptionError`."""
    if not changes:
        known = ", ".join(kinds_of(QueueAttributes))
        raise InvalidOptionError("attributes", "none is given", f"give at least one of {known}")
    _changed(QueueAttributes(), changes)  # Bad ones are refused before anything is sent.
    before = yield from attributes(queue)
    after = _changed(before, changes)
    for shard in (yield from queue.every_shard(anew=True)):
        yield configuring.configure(shard.keys, _but(after.meta(), before.meta()))
    return after


def configure(queue: QueueRef, attributes: QueueAttributes) -> Plan[None]:
    """Set all attributes; creates the queue where it is new. One at its default is not stored."""
    defaults = QueueAttributes().meta()
    chosen = attributes.meta()
    stored = {name: "" if value == defaults[name] else value for name, value in chosen.items()}
    yield from queue.announce()
    for shard in (yield from queue.every_shard(anew=True)):
        yield configuring.configure(shard.keys, stored)


def pause(queue: QueueRef, direction: str = "all", *, strict: bool = False) -> Plan[str]:
    """Pause sending ('in'), receiving ('out') or both ('all'); 'none' ends it, 'state' only asks.

    Returns what is paused then: in, out, all or none. Messages in hand are settled, timed out and promoted as ever;
    but while input is paused with `strict`, what timed out does not come back before the pause ends.
    """
    if direction not in _DIRECTIONS:
        raise InvalidOptionError(
            "pause",
            f"{ascii(direction)[:80]} is no direction",
            f"one of {', '.join(_DIRECTIONS)}",
        )
    if direction == "state":
        seen = yield from looking.inspect(queue)
        return seen.paused or "none"
    if strict and direction not in ("in", "all"):
        raise InvalidOptionError("strict", "is no pause of the input", "pause in or all")
    paused = "" if direction == "none" else direction
    stored = {"paused": paused, "pause_strict": "1" if strict else ""}
    yield from queue.announce()
    for shard in (yield from queue.every_shard(anew=True)):
        yield configuring.configure(shard.keys, stored)
    return direction


def resume(queue: QueueRef) -> Plan[None]:
    """End a pause."""
    yield from pause(queue, "none")


def _changed(attributes: QueueAttributes, given: Mapping[str, object]) -> QueueAttributes:
    known = kinds_of(QueueAttributes)
    for name in given:
        if name not in known:
            raise unknown_option(ascii(name)[1:-1], name, known)
    return replace(attributes, **given)  # type: ignore[arg-type]  # checked by their kinds


def _but(stored: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Leave out what others have alike."""
    return {name: value for name, value in stored.items() if value != others[name]}
