"""Create queues, read and change their attributes, pause and resume them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qworker.client.inspect.peek import inspect
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.fields import kinds_of, unknown_option
from qworker.engine import attributes as configuring
from qworker.engine.options import QueueAttributes
from qworker.errors import InvalidOptionError, QueueNotFoundError

__all__ = [
    "attributes",
    "change",
    "configure",
    "create",
    "create_stored",
    "pause",
    "resume",
    "write_stored",
]

_DIRECTIONS: Final = ("in", "out", "all", "none", "state")


def create(
    queue: QueueRef, /, attributes: QueueAttributes | None = None, **given: object
) -> Plan[None]:
    """Create the queue, with attributes by value or by keyword.

    This is optional: a queue is created by its first message. Raises `QueueExistsError`; after a lost reply
    `InDoubtError`, since the existing queue may be ours.
    """
    chosen = _changed(attributes or QueueAttributes(), given).meta()
    yield from create_stored(queue, _but(chosen, QueueAttributes().meta()))


def create_stored(queue: QueueRef, stored: Mapping[str, str]) -> Plan[None]:
    """Create the queue with attributes as `meta` stores them. Raises as `create` does."""
    yield configuring.create(queue.keys, stored)
    yield from queue.announce()


def attributes(queue: QueueRef) -> Plan[QueueAttributes]:
    """Read the attributes; totals and times are in `inspect`. Raises `QueueNotFoundError`."""
    inspection = yield from inspect(queue)
    if not inspection.exists:
        raise QueueNotFoundError(queue.keys.queue)
    return inspection.attributes


def change(queue: QueueRef, /, **changes: object) -> Plan[QueueAttributes]:
    """Change some attributes and leave the others; returns all. Raises `QueueNotFoundError`, `InvalidOptionError`."""
    if not changes:
        known = ", ".join(kinds_of(QueueAttributes))
        raise InvalidOptionError("attributes", "none is given", f"give at least one of {known}")
    _changed(QueueAttributes(), changes)  # Refuses bad ones before the first call.
    before = yield from attributes(queue)
    after = _changed(before, changes)
    for shard in (yield from queue.every_shard(refresh=True)):
        yield configuring.configure(shard.keys, _but(after.meta(), before.meta()))
    return after


def configure(queue: QueueRef, attributes: QueueAttributes) -> Plan[None]:
    """Set all attributes; creates a new queue. An attribute at its default is not stored."""
    defaults = QueueAttributes().meta()
    chosen = attributes.meta()
    stored = {name: "" if value == defaults[name] else value for name, value in chosen.items()}
    yield from write_stored(queue, stored)


def write_stored(queue: QueueRef, stored: Mapping[str, str]) -> Plan[None]:
    """Set attributes as `meta` stores them, '' for the default; creates a new queue."""
    yield from queue.announce()
    for shard in (yield from queue.every_shard(refresh=True)):
        yield configuring.configure(shard.keys, stored)


def pause(queue: QueueRef, direction: str = "all", *, strict: bool = False) -> Plan[str]:
    """Pause sending ('in'), receiving ('out') or both ('all'); 'none' ends it, 'state' only reads it.

    Returns the direction that is paused then: in, out, all or none. Received messages are settled, timed out and
    promoted as usual; but while input is paused with `strict`, timed-out messages come back only after the pause.
    """
    if direction not in _DIRECTIONS:
        raise InvalidOptionError(
            "pause",
            f"{ascii(direction)[:80]} is not a direction",
            f"one of {', '.join(_DIRECTIONS)}",
        )
    if direction == "state":
        inspection = yield from inspect(queue)
        return inspection.paused or "none"
    if strict and direction not in ("in", "all"):
        raise InvalidOptionError("strict", "does not pause the input", "pause in or all")
    paused = "" if direction == "none" else direction
    yield from write_stored(queue, {"paused": paused, "pause_strict": "1" if strict else ""})
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
    """Leave out values that `others` has too."""
    return {name: value for name, value in stored.items() if value != others[name]}
