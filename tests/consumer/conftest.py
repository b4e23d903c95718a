"""Fixtures of the consumer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker import QWorker


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app without tasks, in a namespace of its own."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()
