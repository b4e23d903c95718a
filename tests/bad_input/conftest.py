"""An app with its queue on the shared server, and everything its namespace holds, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.message import Message
from qworker.client.queue import Queue
from tests.cli.conftest import (  # noqa: F401  fixtures
    Ran,
    Shop,
    bare,
    impatient,
    in_empty_directory,
    process,
    run,
    shop,
)
from tests.consumer.conftest import app, lab  # noqa: F401  fixtures


@dataclass(frozen=True)
class Bench:
    """What a caller holds: an app with tasks, one of its queues, a message that was received from it."""

    app: QWorker
    queue: Queue
    message: Message
    dump: Any

    @property
    def greet(self) -> Any:
        return self.app.tasks["greet"]

    @property
    def total(self) -> Any:
        return self.app.tasks["total"]


@pytest.fixture
def bench(shop: Shop, app: QWorker) -> Bench:  # noqa: F811
    @app.task(queue="emails")
    def greet(name: str, *, at: datetime | None = None) -> None: ...

    @app.task(queue="emails")
    def total(price: float) -> None: ...

    queue = app.queue("emails")
    queue.send({})
    (message,) = queue.receive(visibility="1h")
    return Bench(app, queue, message, shop.dump)
