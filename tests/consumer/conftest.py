"""Fixtures of the consumer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker import QWorker
from tests import servers
from tests.consumer.driving import HEARD_S
from tests.consumer.workers import Lab


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app without tasks, in its own namespace."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


@pytest.fixture
def only_bells(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let waits at the doorbells last for two minutes, so that looking by itself does not help.

    Returns what a child's configuration needs for that: the visibility timeout bounds a wait as well.
    """
    monkeypatch.setattr("qworker.consumer.child.receive.waits._BLOCK_S", 4 * HEARD_S)
    for name in ("_BUSY_S", "_IDLE_S"):
        monkeypatch.setattr(f"qworker.consumer.child.receive.poll_schedule.{name}", 4 * HEARD_S)
    return {"visibility_ms": round(40 * HEARD_S * 1000)}


@pytest.fixture
def lab(
    store_url: str, namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """A place for workers in their own processes, on the shared server."""
    lab = Lab(store_url, namespace, tmp_path, warm=_is_warm(request))
    yield lab
    lab.close()


@pytest.fixture
def own_lab(namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with its own server, which the test may stop or kill."""
    # Near: it is started again at its own socket.
    with servers.start("valkey", far=False) as server:
        lab = Lab(server.url, namespace, tmp_path, warm=_is_warm(request))
        assert lab.server_pid == server.pid
        yield lab
        lab.close()


def _is_warm(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("cold") is None
