"""The queues of a namespace, and making one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qworker.client.commands import upkeep
from qworker.client.commands.claiming import create
from qworker.client.commands.command import Command
from qworker.client.options import QueueAttributes
from qworker.config.fields import kinds_of, unknown_option
from qworker.errors import InvalidNameError, InvalidOptionError, QueueNotFoundError
from qworker.wire.keys import queues_key
from qworker.wire.names import check_namespace, check_queue

if TYPE_CHECKING:
    from qworker.client.operations import Operations, Plan

__all__ = ["attributes_of", "change_queue", "create_queue", "list_queues"]


def list_queues(namespace: str) -> Plan[list[str]]:
    """Name the queues of a namespace, sorted: those that were made or sent to, or that a reaper has found."""
    words = ("HKEYS", queues_key(check_namespace(namespace)))
    entries: list[Any] = yield Command(None, (), words, list)
    names = []
    for entry in entries:
        try:
            names.append(check_queue(entry.decode("utf-8", "replace")))
        except InvalidNameError:
            continue  # Written by hand: no queue can be named so.
    return sorted(names)


def create_queue(
    queue: Operations, attributes: QueueAttributes | None, given: Mapping[str, object]
) -> Plan[None]:
    """Make a queue with attributes, changed by those given by name.

    Raises `QueueExistsError`; after a lost reply `InDoubtError`, for it may be ours that is there.
    """
    chosen, defaults = _changed(attributes or QueueAttributes(), given), QueueAttributes().meta()
    stored = {name: value for name, value in chosen.meta().items() if value != defaults[name]}
    yield create(queue.keys, stored)
    yield from queue.announce()


def attributes_of(queue: Operations) -> Plan[QueueAttributes]:
    """Read the attributes of a queue. Raises `QueueNotFoundError`."""
    seen: upkeep.Inspection = yield upkeep.inspect(queue.keys)
    if not seen.exists:
        raise QueueNotFoundError(queue.keys.queue)
    return QueueAttributes.of_meta(seen.meta)


def change_queue(queue: Operations, changes: Mapping[str, object]) -> Plan[QueueAttributes]:
    """Change some attributes and leave the others; returns all. Raises `QueueNotFoundError`, `InvalidOptionError`."""
    if not changes:
        known = ", ".join(kinds_of(QueueAttributes))
        raise InvalidOptionError("attributes", "none is given", f"give at least one of {known}")
    _changed(QueueAttributes(), changes)  # Bad ones are refused before anything is sent.
    before = yield from attributes_of(queue)
    after = _changed(before, changes)
    stored, earlier = after.meta(), before.meta()
    yield upkeep.configure(
        queue.keys, {name: value for name, value in stored.items() if value != earlier[name]}
    )
    return after


def _changed(attributes: QueueAttributes, given: Mapping[str, object]) -> QueueAttributes:
    known = kinds_of(QueueAttributes)
    for name in given:
        if name not in known:
            raise unknown_option(ascii(name)[1:-1], name, known)
    return replace(attributes, **given)  # type: ignore[arg-type]  # checked by their kinds
