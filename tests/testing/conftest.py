"""An app for the tests of the test kit, bound as users bind theirs."""

from __future__ import annotations

import pytest

from qworker import QWorker


@pytest.fixture
def app(qworker_bind):
    """An app of its own server and namespace; tests add their tasks."""
    return qworker_bind(QWorker("shop"))
