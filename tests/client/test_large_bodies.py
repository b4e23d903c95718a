"""Large bodies keep the server no longer than it takes to copy them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from qworker.client.cancel_by_prefix import cancel_messages
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from tests import servers

#: Whoever searches the first for a space stops at every byte, and at none of the second.
SPACES, DENSE = (b'"' + each * 2**22 + b'"' for each in (b" ", b"x"))
#: Receives whose least counts: more while other work on the machine makes all of them slow.
LEAST, MOST = 6, 60


def cpu_us(server: servers.Server) -> float:
    """The CPU time of a server's thread so far, in which other processes have no part."""
    thread = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat")
    return int(thread.read_text().split()[0]) / 1000


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's account of threads")
@pytest.mark.parametrize(
    "limited",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.nightly(
                "test_a_body_is_not_searched_for_flags_when_its_group_is_served"
            ),
        ),
    ],
)
@pytest.mark.slow
def test_a_body_is_not_searched_for_flags_when_its_group_is_served(
    namespace: str, limited: bool
) -> None:
    """A search takes several times as long as the rest of the receive. The least of some receives counts."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        redis, queue = server.redis(), Queue(client, namespace, "grouped")
        queue.create(maxsize="8MiB")
        if limited:  # it takes its turn the long way
            queue.set_limit("acme", concurrency=9)
        took_us = {SPACES: math.inf, DENSE: math.inf}
        for number in range(MOST):
            for body in took_us:
                queue.send(body, group="acme")
                redis.ping()
                before_us = cpu_us(server)
                (message,) = queue.receive()
                redis.ping()
                took_us[body] = min(took_us[body], cpu_us(server) - before_us)
                queue.ack(message)
            if number + 1 >= LEAST and took_us[SPACES] < 2 * took_us[DENSE]:
                break
        assert took_us[SPACES] < 2 * took_us[DENSE], [*took_us.values()]


@pytest.mark.slow
def test_an_inspection_reads_no_body_in_vain(namespace: str) -> None:
    """One member of a group for its age, and the next due message for its time: no second member past the bound."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "grouped")
        queue.create(maxsize="8MiB")
        for group in ("a", "b", "c"):
            queue.send(DENSE, group=group)
        queue.inspect()
        redis = server.redis()
        redis.config_resetstat()
        assert queue.inspect().stored == 3
        assert redis.info("commandstats")["cmdstat_zrange"]["calls"] == 2


@pytest.mark.parametrize("newest", [False, True])
def test_a_peek_reads_no_lease_beyond_its_count(namespace: str, newest: bool) -> None:
    """A lease may hold a megabyte of bodies, or one body of more: of ten leases two are read for two messages."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "held")
        queue.send_many([str(number).encode() for number in range(10)])
        for _ in range(10):
            queue.receive(1)
        redis = server.redis()
        redis.config_resetstat()
        bodies = [message.body for message in queue.peek(2, state="unacked", newest=newest)]
        assert bodies == ([b"9", b"8"] if newest else [b"0", b"1"])
        assert redis.info("commandstats")["cmdstat_hgetall"]["calls"] == 2


def test_a_cancel_of_many_deletes_no_more_than_a_megabyte_in_a_call(namespace: str) -> None:
    """Three delayed ones of 600 KiB take a call each, small ones one for all."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        redis, queue = server.redis(), Queue(client, namespace, "calls")
        queue.create(maxsize="1MiB")
        calls = {}
        for size in (1, 1, 600 * 2**10):  # the first one loads the script
            ids = queue.send_many([b"x" * size] * 3, delay="1h")
            redis.config_resetstat()
            cancelled: set[str] = set()
            client.run(cancel_messages(queue.ref, tuple(ids), cancelled, set()))
            assert cancelled == set(ids)
            calls[size] = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls[600 * 2**10] == calls[1] + 2
