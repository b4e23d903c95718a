"""An app for the tests of `qworker.testing`, bound as users bind theirs."""

from __future__ import annotations

import pytest

from qworker import QWorker


@pytest.fixture
def app(qworker_bind):
    """An app with a server and its own namespace; tests add tasks."""
    return qworker_bind(QWorker("shop"))
