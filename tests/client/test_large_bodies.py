"""Large bodies keep the server no longer than it takes to copy them."""

from __future__ import annotations

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from tests import servers

#: Text, as what is sent often is: who searches it for a space stops at every word.
WORDS = b'"' + b"a word " * (4 * 2**20 // 7) + b'"'
MESSAGES = 6


def test_a_body_is_not_searched_for_flags_when_its_group_is_served(namespace: str) -> None:
    """That took four times as long as the rest of the receive. The least of some is without other processes."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        redis, took_us = server.redis(), {}
        for name, group in (("plain", None), ("grouped", "acme")):
            queue = Queue(client, namespace, name)
            queue.create(maxsize="8MiB")
            for _ in range(MESSAGES):
                queue.send(WORDS, group=group)
            took = []
            for _ in range(MESSAGES):
                redis.config_resetstat()
                assert len(queue.receive()) == 1
                took.append(redis.info("commandstats")["cmdstat_evalsha"]["usec"])
            took_us[name] = min(took)
        # It also leaves a sorted set, whose members are hashed.
        assert took_us["grouped"] < 3 * took_us["plain"], took_us
