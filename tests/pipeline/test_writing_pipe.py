"""Calls on their way to one server, and what becomes of those behind one that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from qworker.client.commands.bulk import Chunk, Run, send_chunk
from qworker.client.commands.command import Command
from qworker.pipeline.writing.pipe import Patience, Pipe
from qworker.store.connection import ConnectionFactory
from qworker.store.lines import Lines
from qworker.store.nodes import Address
from qworker.store.scripts import load_script
from qworker.wire.ids import new_id_prefix
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.topologies.servers import Cluster, Node, until

SCRIPT = load_script("send_chunk")
KEYS = QueueKeys("shop", "emails")


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A server of its own: it is made to forget its scripts."""
    with servers.start("valkey", guarded=False) as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server: servers.Server) -> None:
    server.redis().unlink(KEYS.ready[0], KEYS.stats)


def pipe(url: str, *, wait_s: float = 0.0, give_up_s: float = 60.0) -> Pipe:
    return Pipe(ConnectionFactory(url), SCRIPT, Patience(wait_s), give_up_s=give_up_s)


def row(number: int, limit: int = 0) -> Command[int]:
    """Send one row without a ledger."""
    run = Run(write_id="w", run_id="r", id_prefix=new_id_prefix(), kept_ms=60_000, limit=limit)
    return send_chunk(KEYS, run, Chunk("", number, [b"row%d" % number], number, number + 1))


def test_calls_behind_an_error_are_not_sent_again(server: servers.Server) -> None:
    """The script is forgotten and loaded by somebody else while calls are on their way: what then was stored, is."""
    redis, writing = server.redis(), pipe(server.url)

    def calls() -> int:
        return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    writing.ask(row(0))
    redis.script_flush()
    for number in range(1, 5):
        before = calls()
        writing.put(row(number), lambda _: None)
        # It is answered, and nobody has read that.
        until(lambda before=before: calls() > before)
        if number == 2:
            redis.script_load(SCRIPT.source)
    writing.flush()
    writing.close()
    bodies = [item.partition(b"\n")[2] for item in redis.lrange(KEYS.ready[0], 0, -1)]
    assert sorted(bodies) == [b"row%d" % number for number in range(5)]


def test_each_break_is_waited_for_anew(server: servers.Server) -> None:
    """However long there was no room in between."""
    redis, writing = server.redis(), pipe(server.url, wait_s=60.0, give_up_s=0.5)
    writing.ask(row(0, limit=1))

    def break_twice() -> None:
        for _ in range(2):
            time.sleep(0.7)
            for client in redis.client_list():
                if client["name"] == "qworker":
                    redis.client_kill_filter(_id=client["id"])
        time.sleep(0.7)
        redis.hset(KEYS.stats, "stored", 0)

    breaker = threading.Thread(target=break_twice)
    breaker.start()
    writing.ask(row(1, limit=1))
    breaker.join()
    writing.close()
    assert redis.llen(KEYS.ready[0]) == 2


def test_a_line_with_calls_on_their_way_outlives_the_slots_of_its_server(nodes: Cluster) -> None:
    """It is closed with others like it once nobody waits for its replies."""
    factory = ConnectionFactory(nodes.url)
    first, second = nodes.masters()[:2]
    waiting = {_address(nodes.replica_of(first))}
    lines = Lines(factory, busy=waiting.__contains__)
    factory.locate("key")
    (replica,) = waiting
    line = lines.to(replica)
    lines.to(_address(first))
    assert lines.known(replica) is line
    waiting.clear()
    lines.to(_address(second))
    assert lines.known(replica) is None
    lines.close()


def _address(node: Node) -> Address:
    host, _, port = node.address.rpartition(":")
    return Address(host, int(port))
