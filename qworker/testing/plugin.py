"""The pytest plugin: a private server for the session, and apps that use it for a test.

    @pytest.fixture
    def shop(qworker_bind):
        return qworker_bind(shop_module.app)

pytest loads it wherever qworker is installed, so it imports and starts nothing until a test asks for a fixture.
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
    """The URL of a private Redis or Valkey server, which goes with the test session, data included.

    With pytest-xdist every worker process has one. Tests fail, and are not skipped, if there is no server to run.
    """
    from qworker.store.embedded.store import PrivateStore

    with PrivateStore() as store:
        yield store.url


@pytest.fixture
def qworker_bind(qworker_store: str) -> Iterator[Callable[[QWorker], QWorker]]:
    """A function that lets an app use the session's server, in its own namespace, until the test ends."""
    from qworker.testing import bind

    with ExitStack() as bound:
        yield lambda app: bound.enter_context(bind(app, qworker_store))


@pytest.fixture
def qworker_drain() -> Callable[..., Drained]:
    """The function `qworker.testing.drain`, for tests that do not import qworker."""
    from qworker.testing import drain

    return drain
