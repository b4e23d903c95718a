"""Large bodies keep the server no longer than it takes to copy them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from tests import servers

#: Text, as what is sent often is: who searches it for a space stops at every word.
WORDS = b'"' + b"a word " * (4 * 2**20 // 7) + b'"'
#: Receives whose least counts: more while other work on the machine makes all of them slow.
LEAST, MOST = 6, 60


def cpu_us(server: servers.Server) -> float:
    """The CPU time of a server's thread so far, in which other processes have no part."""
    thread = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat")
    return int(thread.read_text().split()[0]) / 1000


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's account of threads")
def test_a_body_is_not_searched_for_flags_when_its_group_is_served(namespace: str) -> None:
    """That took the server four times as long as the rest of the receive. The least of some receives counts."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        redis = server.redis()
        groups = {"plain": None, "grouped": "acme"}
        queues = {name: Queue(client, namespace, name) for name in groups}
        for queue in queues.values():
            queue.create(maxsize="8MiB")
        took_us = dict.fromkeys(groups, math.inf)
        for number in range(MOST):
            for name, queue in queues.items():
                queue.send(WORDS, group=groups[name])
                redis.ping()
                before_us = cpu_us(server)
                (message,) = queue.receive()
                redis.ping()
                took_us[name] = min(took_us[name], cpu_us(server) - before_us)
                queue.ack(message)
            # A sorted set, whose members are hashed, takes longer as well.
            if number + 1 >= LEAST and took_us["grouped"] < 3 * took_us["plain"]:
                break
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
