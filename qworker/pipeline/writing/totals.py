"""What a bulk write came to, from the ledgers of its queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.pipeline.writing.pushing import Pushed
from qworker.store.connection import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys

__all__ = ["read_totals"]


def read_totals(
    server: ServerURL, namespace: str, write_id: str, run_id: str, done: Iterable[Pushed]
) -> dict[str, Any]:
    """Add up what the tasks read, and read from the ledgers what was stored.

    `rows`: read by the attempts that succeeded · `sent`: messages stored by this run, its failed attempts included ·
    `already_there`: rows that an earlier run, or another row of that id, had stored · `stored`: messages of all runs ·
    `queues`: the same per queue.
    """
    rows: Counter[str] = Counter()
    for each in done:
        rows.update(each.rows)
    queues = {}
    with Client(ConnectionFactory(server, name="qworker-spark")) as client:
        for queue, number in sorted(rows.items()):
            ledger = QueueKeys(namespace, queue).bulk(write_id)
            words = ("HMGET", ledger, f"run:{run_id}", "stored")
            sent, stored = client.execute(Command(None, (), words, list))
            queues[queue] = _row(number, int(sent or 0), int(stored or 0))
    together: Mapping[str, int] = {
        name: sum(each[name] for each in queues.values()) for name in _row(0, 0, 0)
    }
    return {"action": "send", "write_id": write_id, **together, "queues": queues}


def _row(rows: int, sent: int, stored: int) -> dict[str, int]:
    return {"rows": rows, "sent": sent, "already_there": max(rows - sent, 0), "stored": stored}
