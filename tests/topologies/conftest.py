"""A Cluster and a Sentinel set that all tests of this folder share; a test that breaks one repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.consumer.workers import Lab
from tests.topologies import servers

_HERE: Final = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one process runs what shares a set of servers, so that it starts once."""
    for item in items:
        if not item.path.is_relative_to(_HERE):  # the hook is called for the tests of all folders
            continue
        named = {*getattr(item, "fixturenames", ())}
        if hasattr(item, "callspec"):
            named.add(str(item.callspec.params.get("url")))
        for name in named & {"nodes", "trio"}:
            item.add_marker(pytest.mark.xdist_group(name))
            item.add_marker("slow")  # six servers start, and failovers take their time


@pytest.fixture(scope="session")
def nodes() -> Iterator[servers.Cluster]:
    """Three masters with a replica each."""
    with servers.cluster() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def trio() -> Iterator[servers.Trio]:
    """A master and two replicas behind three Sentinels."""
    with servers.sentinel() as trio:
        yield trio


@pytest.fixture(params=["nodes", "trio"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each in turn."""
    topology: servers.Cluster | servers.Trio = request.getfixturevalue(request.param)
    return topology.url


@pytest.fixture
def lab(url: str, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A place for workers in their own processes."""
    lab = Lab(url, namespace, tmp_path)
    yield lab
    lab.close()
