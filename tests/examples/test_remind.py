"""The example of a loop over a table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker.testing import drain


def test_each_customer_is_reminded_once(
    qworker_bind: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Although the worker stops after every 70 customers; the month is started once."""
    from examples import remind

    app = qworker_bind(remind.app)
    path = tmp_path / "customers.db"
    monkeypatch.setenv("CUSTOMERS", str(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT)")
        database.executemany(
            "INSERT INTO customers VALUES (?, ?)", [(n, f"{n}@example.org") for n in range(1, 251)]
        )
    remind.main("2026-11")
    drain(app, interrupt_after=70)
    remind.main("2026-11")
    drain(app)
    lines = capsys.readouterr().out.splitlines()
    reminded = [line.split()[2] for line in lines if "reminded" in line and "@" in line]
    assert reminded == [f"{n}@example.org" for n in range(1, 251)]
    assert lines.count("all customers are reminded of 2026-11") == 1
    assert "customers: all 250" in lines
