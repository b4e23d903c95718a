"""What a child reads before it receives."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QWorker
from qworker.store.connections import ConnectionFactory
from tests.consumer.driving import assembled


def test_a_child_reads_all_that_it_has_to_know_over_one_connection(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting takes trips of its own: a child that replaces a dead one receives later by each of them."""

    @app.task(queue="one")
    def first() -> None: ...

    @app.task(queue="two")
    def second() -> None: ...

    opened: list[str] = []
    open_one = ConnectionFactory.open

    def counted(self: ConnectionFactory, *given: Any) -> Any:
        opened.append(str(given[0]))
        return open_one(self, *given)

    monkeypatch.setattr(ConnectionFactory, "open", counted)
    with assembled(app):
        # One to each node that has one of the queues.
        assert len(opened) == len(set(opened)), opened
        assert opened
