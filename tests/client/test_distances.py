"""How long calls keep a server busy, as a client on the other side of a network can tell."""

from __future__ import annotations

import threading
import time

import pytest

from qworker.client.execute.distance import Distances
from qworker.client.execute.single_wait import WatchingClient
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from tests.relay import Relay
from tests.servers import start

NEAR, FAR = Address("near", 6379), Address("far", 6379)


def test_a_trip_counts_as_far_as_it_is_longer_than_the_shortest_and_a_quarter() -> None:
    """Of each node on its own; a trip to several is measured by the one that is farthest away."""
    distances = Distances()
    for node, seconds in ((NEAR, 0.005), (NEAR, 0.004), (FAR, 0.04), (NEAR, 0.005), (FAR, 0.05)):
        distances.note([node], seconds)
    assert distances.busy_s == 0.0
    distances.note([NEAR], 0.007)
    assert round(distances.busy_s, 6) == 0.002
    distances.note([NEAR, FAR], 0.051)
    assert round(distances.busy_s, 6) == 0.003
    distances.note([], 1.0)
    assert round(distances.busy_s, 6) == 0.003


def test_a_node_that_moved_away_is_no_busy_one() -> None:
    """A network that got longer counts as the server's time for 100 trips at most."""
    distances = Distances()
    distances.note([NEAR], 0.001)
    for _ in range(100):
        distances.note([NEAR], 0.05)
    before_s = distances.busy_s
    distances.note([NEAR], 0.05)
    assert distances.busy_s == before_s


def test_threads_count_on_their_own() -> None:
    distances = Distances()
    distances.note([NEAR], 0.001)

    def note() -> None:
        distances.note([NEAR], 1.0)
        assert round(distances.busy_s, 6) == 0.99875

    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert distances.busy_s == 0.0


@pytest.mark.slow
def test_the_distance_of_a_server_does_not_count_as_its_time() -> None:
    """Whether calls are made one by one, in one trip or over a new connection: only the server's own time does."""
    with (
        start("valkey", "--enable-debug-command", "yes", guarded=False, far=False) as server,
        Relay(server.url, rtt_ms=200) as relay,
        WatchingClient(ConnectionFactory(relay.url)) as client,
    ):
        began_s = time.monotonic()
        for _ in range(4):
            client.ask("PING")
        echoes = [raw("ECHO", str(number), decode=bytes) for number in range(50)]
        assert client.execute_each(echoes) == [b"%d" % number for number in range(50)]
        assert client.busy_s < (time.monotonic() - began_s) / 2
        before_s = client.busy_s
        client.ask("DEBUG", "SLEEP", "1")
        assert client.busy_s - before_s > 0.8
