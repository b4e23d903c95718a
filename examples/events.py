"""Events in batches: one transaction for many messages, an outcome for each.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=events
    python examples/events.py 10000         sends ten thousand events
    qworker run examples/events.py          loads them into ./events.sqlite, up to 500 at a time

The id of an event is its key in the table, so an event that is delivered twice is counted once.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys
import time
from contextlib import closing

import msgspec

from qworker import Bury, QWorker

app = QWorker("events")

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, kind TEXT, at_ms INTEGER, amount INTEGER) WITHOUT ROWID
"""


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `at_ms`: ms since 1970."""

    id: str
    kind: str
    at_ms: int
    amount: int = 1


@app.task(queue="events", batch=500, max_wait="200ms")
def load(events: list[Event]) -> list[Exception | None]:
    """Put events into the table, in one transaction; bury each event from the future."""
    latest_ms = (time.time() + 60) * 1000
    outcomes: list[Exception | None] = [
        Bury(f"at_ms {event.at_ms} is in the future") if event.at_ms > latest_ms else None
        for event in events
    ]
    good = [event for event, outcome in zip(events, outcomes, strict=True) if outcome is None]
    with closing(database()) as table, table:
        table.executemany(
            "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)",
            [(event.id, event.kind, event.at_ms, event.amount) for event in good],
        )
    return outcomes


def database() -> sqlite3.Connection:
    """Open the database, and create the table if it is new."""
    connection = sqlite3.connect(os.environ.get("EVENTS", "events.sqlite"), timeout=30)
    connection.execute(SCHEMA)
    return connection


def totals() -> dict[str, int]:
    """Sum the amounts by kind."""
    with closing(database()) as table:
        rows = table.execute("SELECT kind, SUM(amount) FROM events GROUP BY kind ORDER BY kind")
        return dict(rows.fetchall())


if __name__ == "__main__":
    now_ms = int(time.time() * 1000)
    kinds = itertools.cycle(("click", "order", "visit"))
    events = (Event(f"e{n}", next(kinds), now_ms) for n in range(int(sys.argv[1])))
    print(len(load.send_many(load.call(event) for event in events)), "sent")
