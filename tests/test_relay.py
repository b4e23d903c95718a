"""The relay: every byte is late by the same time, however many are on their way, and nothing else is changed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis

from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.ports import free_port
from tests.relay import Relay
from tests.timing import Watch

RTT_MS = 40.0


@pytest.fixture(params=["unix", "tcp"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A near server."""
    if request.param == "unix":
        with servers.start("valkey", far=False) as server:
            yield server.url
        return
    port = free_port()
    with servers.start("valkey", "--port", str(port), far=False):
        yield f"redis://127.0.0.1:{port}/0"


def timed(client: redis.Redis, commands: int) -> float:
    """Seconds of a pipeline."""
    begun = time.monotonic()
    pipeline = client.pipeline(transaction=False)
    for _ in range(commands):
        pipeline.echo("x")
    assert pipeline.execute() == [b"x"] * commands
    return time.monotonic() - begun


@pytest.mark.slow
def test_a_pipeline_costs_one_round_trip(url: str) -> None:
    """A hundred commands take as long as one; over a second connection at the same time as well."""
    with Relay(url, rtt_ms=RTT_MS) as relay:
        client = ConnectionFactory(relay.url).redis()
        client.ping()
        one_s = min(timed(client, 1) for _ in range(3))
        assert one_s >= RTT_MS / 1000
        # One after the other they would take four seconds.
        assert min(timed(client, 100) for _ in range(3)) < one_s + 2
        others = [threading.Thread(target=timed, args=(client, 100)) for _ in range(8)]
        watch = Watch(os.getpid())
        for other in others:
            other.start()
        for other in others:
            other.join()
        # Each connects at first. One after the other they would take half a minute.
        assert watch.passed_s() < 10
        client.close()


@pytest.mark.slow
def test_large_values_pass_at_the_bandwidth(url: str) -> None:
    """A megabyte comes back whole, and takes the time that the line needs for it."""
    with Relay(url, rtt_ms=1, bytes_per_s=10_000_000) as relay:
        client = ConnectionFactory(relay.url).redis()
        client.ping()
        begun = time.monotonic()
        assert client.echo("x" * 1_000_000) == b"x" * 1_000_000
        assert time.monotonic() - begun >= 0.2
        client.close()


def test_an_end_is_passed_on(url: str) -> None:
    """A server that closes a connection closes it for the client, after what it has said."""
    with Relay(url, rtt_ms=1) as relay:
        parts = urlsplit(relay.url)
        family, address = (
            (socket.AF_UNIX, parts.path)
            if parts.scheme == "unix"
            else (socket.AF_INET, (parts.hostname, parts.port))
        )
        with socket.socket(family) as client:
            client.settimeout(30)
            client.connect(address)
            client.sendall(b"QUIT\r\n")
            assert client.makefile("rb").read() == b"+OK\r\n"
