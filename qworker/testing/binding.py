"""Gives an app a server and a namespace of its own for as long as a test lasts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qworker.store.connection import ConnectionFactory

if TYPE_CHECKING:
    from qworker.app.app import QWorker

__all__ = ["bind"]


@contextmanager
def bind(app: QWorker, url: str) -> Iterator[QWorker]:
    """Let an app use the server at `url`, in a namespace that nothing else uses; afterwards it is as it was.

    Tasks, schedules and middleware stay. So two tests on one server never see each other's messages.
    """
    namespace, factory = app.namespace, app._factory
    app.namespace = f"test-{uuid.uuid4().hex[:16]}"
    app.connect_with(ConnectionFactory(url, name="qworker-test"))
    try:
        yield app
    finally:
        app.close()
        app.namespace = namespace
        # None, too: the app then looks for its URL again when it is next used.
        app.connect_with(factory)
