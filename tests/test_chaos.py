"""The chaos proxy breaks what it says it breaks, and nothing else."""

from __future__ import annotations

import contextlib
import time

import pytest
import redis

from qworker.store.connections import ConnectionFactory
from tests.chaos import ChaosProxy
from tests.timing import DEADLINE_S


@pytest.fixture
def proxy(engine_url):
    with ChaosProxy(engine_url) as proxy:
        yield proxy


@pytest.fixture
def open_client(proxy):
    """Make clients of the proxy without retries, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(ConnectionFactory(proxy.url, reply_timeout_s=0.2).redis())


def test_passes_calls_that_it_is_not_asked_to_break(open_client, queue_name):
    """Large requests and replies pass whole."""
    client = open_client()
    client.set(queue_name, b"x" * 1_000_000)
    assert client.get(queue_name) == b"x" * 1_000_000


def test_every_tenth_reply_is_lost_after_the_call_ran(proxy, open_client, queue_name):
    """Over several connections, one call of ten raises, and all of them ran."""
    clients = [open_client() for _ in range(4)]
    proxy.cut_reply(every=10, of=b"INCR")
    lost = 0
    for number in range(100):
        try:
            clients[number % 4].incr(queue_name)
        except redis.ConnectionError:
            lost += 1
    assert lost == proxy.replies_cut == 10
    assert int(clients[0].get(queue_name)) == 100


def test_the_next_reply_is_lost_once(proxy, open_client, queue_name):
    """Only the first matching command loses its reply."""
    client = open_client()
    proxy.cut_next_reply(of=b"INCR")
    assert client.ping()
    with pytest.raises(redis.ConnectionError):
        client.incr(queue_name)
    assert client.incr(queue_name) == 2


def test_a_lost_request_does_not_run(proxy, open_client, queue_name):
    """A request that is cut never reaches the server."""
    client = open_client()
    proxy.cut_request(every=1, of=b"INCR", times=1)
    with pytest.raises(redis.ConnectionError):
        client.incr(queue_name)
    assert proxy.requests_cut == 1
    assert client.incr(queue_name) == 1


def test_a_blackhole_swallows_and_gives_back(proxy, open_client, queue_name):
    """Nothing passes while it is on: a timeout; the request runs when it is off."""
    client = open_client()
    client.ping()
    proxy.blackhole = True
    with pytest.raises(redis.TimeoutError):
        client.incr(queue_name)
    proxy.blackhole = False
    deadline = time.monotonic() + DEADLINE_S
    while client.get(queue_name) != b"1":
        assert time.monotonic() < deadline


def test_delay_is_each_way(proxy, open_client):
    """A round trip takes twice the delay."""
    client = open_client()
    client.ping()
    proxy.delay_s = 0.03
    started = time.monotonic()
    client.ping()
    assert time.monotonic() - started >= 0.06


def test_a_reset_reaches_every_connection(proxy, open_client):
    """Open connections break; new ones are taken."""
    clients = [open_client() for _ in range(3)]
    for client in clients:
        client.ping()
    proxy.reset_all()
    for client in clients:
        # A pool replaces a connection that it sees to be broken in time, without an error.
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
    assert all(client.ping() for client in clients)
    assert proxy.accepted == 6


def test_a_slow_link_takes_its_time(proxy, open_client, queue_name):
    """100 KB at 1 MB a second take a tenth of a second, more for what goes back."""
    client = open_client()
    client.ping()
    proxy.bytes_per_s = 1e6
    started = time.monotonic()
    client.set(queue_name, b"x" * 100_000)
    assert time.monotonic() - started >= 0.1


def test_healed_it_breaks_nothing(proxy, open_client, queue_name):
    """Whatever was set before."""
    proxy.cut_reply(every=1)
    proxy.cut_request(every=1)
    proxy.delay_s, proxy.bytes_per_s, proxy.blackhole = 5.0, 1.0, True
    proxy.heal()
    assert open_client().incr(queue_name) == 1
