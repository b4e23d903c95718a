"""Large bodies keep the server no longer than it takes to copy them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from tests import servers

#: Text, as what is sent often is: who searches it for a space stops at every word.
WORDS = b'"' + b"a word " * (4 * 2**20 // 7) + b'"'
MESSAGES = 6


def cpu_us(server: servers.Server) -> float:
    """The CPU time of a server's thread so far, in which other processes have no part."""
    thread = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat")
    return int(thread.read_text().split()[0]) / 1000


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's account of threads")
def test_a_body_is_not_searched_for_flags_when_its_group_is_served(namespace: str) -> None:
    """That took the server four times as long as the rest of the receive. The least of some receives counts."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        redis, took_us = server.redis(), {}
        for name, group in (("plain", None), ("grouped", "acme")):
            queue = Queue(client, namespace, name)
            queue.create(maxsize="8MiB")
            for _ in range(MESSAGES):
                queue.send(WORDS, group=group)
            took = []
            for _ in range(MESSAGES):
                redis.ping()
                before_us = cpu_us(server)
                assert len(queue.receive()) == 1
                redis.ping()
                took.append(cpu_us(server) - before_us)
            took_us[name] = min(took)
        # It also leaves a sorted set, whose members are hashed.
        assert took_us["grouped"] < 3 * took_us["plain"], took_us


def test_an_inspection_reads_no_body_in_vain(namespace: str) -> None:
    """One member of a group for its age, and the next due message for its time: no second member past the bound."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "grouped")
        queue.create(maxsize="8MiB")
        for group in ("a", "b", "c"):
            queue.send(WORDS, group=group)
        queue.inspect()
        redis = server.redis()
        redis.config_resetstat()
        assert queue.inspect().stored == 3
        assert redis.info("commandstats")["cmdstat_zrange"]["calls"] == 2
