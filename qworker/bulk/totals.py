"""Totals of a bulk write, from the ledgers of its queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from qworker.bulk.ledger import SHARDS, ledgers_of
from qworker.bulk.sender import BulkSent
from qworker.client.execute.sync import Client
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys

__all__ = ["read_totals"]


def read_totals(
    connections: ConnectionFactory,
    namespace: str,
    write_id: str,
    run_id: str,
    done: Iterable[BulkSent],
) -> dict[str, Any]:
    """Add up the rows that the tasks read; the ledgers count the stored ones.

    `rows`: read by the attempts that succeeded · `sent`: messages stored by this run, its failed attempts included ·
    `already_there`: rows stored before, by an earlier run or under the same id · `stored`: messages of all runs ·
    `queues`: the same per queue.
    """
    rows: Counter[str] = Counter()
    for sent_by_task in done:
        rows.update(sent_by_task.rows)
    queues = {}
    with Client(connections) as client:
        for queue, number in sorted(rows.items()):
            keys, sent, stored = QueueKeys(namespace, queue), 0, 0
            shards = client.execute(raw("HGET", keys.bulk(write_id), SHARDS))
            for ledger in ledgers_of(namespace, queue, write_id, shards):
                counts = raw("HMGET", ledger, f"run:{run_id}", "stored", decode=list)
                by_run, by_all = client.execute(counts)
                sent, stored = sent + int(by_run or 0), stored + int(by_all or 0)
            queues[queue] = _row(number, sent, stored)
    together: Mapping[str, int] = {
        name: sum(row[name] for row in queues.values()) for name in _row(0, 0, 0)
    }
    return {"action": "send", "write_id": write_id, **together, "queues": queues}


def _row(rows: int, sent: int, stored: int) -> dict[str, int]:
    return {"rows": rows, "sent": sent, "already_there": max(rows - sent, 0), "stored": stored}
