"""Gives an app a server and its own namespace for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qworker.store.connections import ConnectionFactory

if TYPE_CHECKING:
    from qworker.app.app import QWorker

__all__ = ["bind"]


@contextmanager
def bind(app: QWorker, url: str) -> Iterator[QWorker]:
    """Let an app use the server at `url`, in its own namespace, so that tests never see each other's messages.

    Keeps tasks, schedules and middleware; afterwards the app uses its own server and namespace again.
    """
    namespace, factory = app.namespace, app._factory
    app.namespace = f"test-{uuid.uuid4().hex[:16]}"
    app.connect_with(ConnectionFactory(url, name="qworker-test"))
    try:
        yield app
    finally:
        app.close()
        app.namespace = namespace
        # With None the app looks up its URL again on next use.
        app.connect_with(factory)
