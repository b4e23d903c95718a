"""Fixtures that every test may ask for: servers of our own, and names that nobody else uses.

A server is shared by all tests of one pytest process (so one per pytest-xdist worker). Tests keep apart
by their names, never by a flush; a test that stops or reconfigures a server starts its own with
`tests.servers.start`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from tests.topologies.servers import shared

# The machine is shared: how long an example takes says nothing.
settings.register_profile(
    "shared machine",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many processes again as there are cores: most tests wait for processes, servers and times."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """The URL of a Valkey shared by the tests of this process."""
    with shared("valkey") as url:
        yield url


@pytest.fixture(scope="session", params=["valkey", "redis"])
def engine_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a shared server; the test runs once for each engine."""
    if request.param == "valkey":
        yield request.getfixturevalue("store_url")
        return
    with shared(request.param) as url:
        yield url


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """A test that sets up logs leaves nothing of it behind: a handler would write to whatever has its file by then."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in before and type(handler).__module__.startswith("qworker."):
            root.removeHandler(handler)


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue_name() -> str:
    """A queue name that no other test uses."""
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    """What is logged meanwhile."""
    with capture_logs() as lines:
        yield lines  # type: ignore[misc]
