"""The pytest plugin: a private server for the session, and apps bound to it for a test.

    @pytest.fixture
    def shop(qworker_bind):
        return qworker_bind(shop_module.app)

Loaded by pytest wherever qworker is installed, so nothing is imported or started before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.testing.draining import Drained

__all__ = ["qworker_bind", "qworker_drain", "qworker_store"]


@pytest.fixture(scope="session")
def qworker_store() -> Iterator[str]:
    """The URL of a Redis or Valkey server that only this test session uses; it and its data go with the session.

    With pytest-xdist each worker process has one. Skips nothing: without a server to run, the test fails and says so.
    """
    from qworker.store.embedded import PrivateStore

    with PrivateStore() as store:
        yield store.url


@pytest.fixture
def qworker_bind(qworker_store: str) -> Iterator[Callable[[QWorker], QWorker]]:
    """A function that binds an app to the session's server, in a namespace of its own, until the test ends."""
    from qworker.testing import bind

    with ExitStack() as bound:
        yield lambda app: bound.enter_context(bind(app, qworker_store))


@pytest.fixture
def qworker_drain() -> Callable[..., Drained]:
    """The function `qworker.testing.drain`, for tests that import nothing of qworker."""
    from qworker.testing import drain

    return drain
