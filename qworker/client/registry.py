"""The queues of a namespace."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.command import Command
from qworker.client.plan import Plan
from qworker.errors import InvalidNameError
from qworker.wire.keys import queues_key
from qworker.wire.names import check_namespace, check_queue

__all__ = ["list_queues"]


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
