"""`--rtt`: every server of a run is that far from what uses it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from verification.faults.server import FaultServer
from verification.faults.topology import a_cluster, a_parted_trio, a_trio

pytestmark = pytest.mark.slow

RTT_S = 0.02


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all servers of the test away."""
    monkeypatch.setattr(FaultServer, "rtt_ms", 1000 * RTT_S)


def send_s(url: str, queue: str = "q") -> float:
    """Seconds of a send over a connection that is there, once it works."""
    with Client(ConnectionFactory(url)) as client:
        place = Queue(client, "n", queue)
        place.send({"n": 0})
        began = time.monotonic()
        place.send({"n": 1})
        return time.monotonic() - began


def ping_s(client: redis.Redis) -> float:
    """Seconds of a round trip."""
    began = time.monotonic()
    assert client.ping()
    return time.monotonic() - began


def test_one_server_is_far_for_its_users_and_near_for_the_run() -> None:
    """Also after it was killed and started again."""
    with FaultServer() as server:
        for _ in range(2):
            assert send_s(server.url) >= RTT_S
            near = server.redis()
            assert min(ping_s(near) for _ in range(100)) < RTT_S
            server.kill()
            server.start()


@pytest.mark.parametrize(
    "make", [a_trio(), a_parted_trio(), a_cluster], ids=["trio", "parted", "cluster"]
)
@pytest.mark.nightly("test_one_server_is_far_for_its_users_and_near_for_the_run")
def test_every_node_of_a_set_is_far(make: object, tmp_path: Path) -> None:
    """Wherever clients are told to go."""
    with ExitStack() as stack:
        server = stack.enter_context(make(stack, tmp_path))  # type: ignore[operator]
        for number in range(6):
            assert send_s(server.url, f"q{number}") >= RTT_S
