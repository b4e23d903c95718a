"""Queues and namespaces found by their keys, node by node, where the index of queues cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.client.namespace.queues import is_queue
from qworker.errors import ServerError

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.store.nodes import Address

__all__ = ["find_queues", "scan_keys"]


def find_queues(
    client: Client, namespace: str, calls: int, note: Callable[[str], None]
) -> list[str]:
    """Find queues by their keys on the nodes that answer, with up to `calls` SCANs of 1,000 keys on each.

    `note` gets a line for each node that is not, or not wholly, scanned.
    """
    pattern = re.compile(re.escape(namespace) + r":\{([^{}/]+)\}:")
    names: set[str] = set()

    def take(key: str) -> None:
        match = pattern.match(key)
        if match is not None and is_queue(match[1]):
            names.add(match[1])

    for node in client.factory.masters():
        try:
            whole = scan_keys(client, node, f"{namespace}:{{*}}:[mrud][en]*", calls, take)
        except ServerError as error:
            note(f"{node} was not scanned: {error}")
            continue
        if not whole:
            note(f"{node} has more than {calls:,},000 keys: only some were scanned")
    return sorted(names)


def scan_keys(
    client: Client, node: Address, pattern: str, calls: int, take: Callable[[str], None]
) -> bool:
    """Pass the keys of a node that match to `take`, in up to `calls` calls; returns whether these were all."""
    cursor: Any = 0
    for _ in range(calls):
        words = ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        cursor, keys = client.ask(*words, node=node)
        for key in keys:
            take(key.decode("utf-8", "replace"))
        if cursor == b"0":
            return True
    return False
