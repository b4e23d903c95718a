"""A loop over a table that continues where it stopped: after a deployment, a crash, or a row that failed.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=reminders CUSTOMERS=customers.db
    qworker run examples/remind.py &
    python -m examples.remind 2026-11          starts the run of this month once, and shows how far it has come

The table is read in pages after the last customer (keyset pagination). The position is kept after every 50 customers
or 5 seconds, and when the worker stops: then another worker continues with the next customer.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass

from qworker import QWorker, SyncRun

app = QWorker("reminders")


@dataclass
class Customer:
    """A row of the table."""

    id: int
    email: str


def customers(after: int | None) -> list[Customer]:
    """Read the next customers, by their ids."""
    with closing(sqlite3.connect(os.environ["CUSTOMERS"])) as database:
        rows = database.execute(
            "SELECT id, email FROM customers WHERE id > ? ORDER BY id LIMIT 100", (after or 0,)
        )
        return [Customer(*row) for row in rows]


def send(key: str, customer: Customer, month: str) -> None:
    """Pretend to send a mail. A real mail system takes the key, and sends it once even if the worker dies meanwhile."""
    print(f"{key}: reminded {customer.email} of {month}")


@app.workflow(queue="reminders", result="7d")
def remind(run: SyncRun, month: str) -> None:
    """Remind each customer, and report once."""
    for customer in run.each(customers, key=lambda customer: customer.id, every=50):
        send(run.key(f"mail-{customer.id}"), customer, month)
    run.step("report", print, f"all customers are reminded of {month}")


def main(month: str) -> None:
    """Start the reminders of a month, and show how far they have come."""
    handle = remind.options(id=f"remind-{month}").start(month)
    for step in handle.steps() or []:
        print(f"{step.name[1:]}: {step.progress}")


if __name__ == "__main__":
    main(sys.argv[1])
