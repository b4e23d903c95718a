"""An app for clients in other languages."""

from __future__ import annotations

import pytest

from qworker import QWorker
from qworker.testing import bind


@pytest.fixture
def app(qworker_store):
    """An app whose only task keeps what it was called with."""
    app = QWorker("shop")
    app.seen = []

    @app.task(queue="emails")
    def send_email(to: str) -> None:
        app.seen.append(to)

    with bind(app, qworker_store) as bound:
        yield bound
