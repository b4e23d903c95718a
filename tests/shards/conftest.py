"""What tests of divided queues begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker import QWorker


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app of nothing but queues."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()
