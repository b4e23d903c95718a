"""Calls in flight to one server, and what becomes of those after one that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from qworker.bulk.transport import RoomWait, Transport
from qworker.engine.command import Command
from qworker.engine.scripts import load_script
from qworker.engine.send_chunk import BulkRun, Chunk, send_chunk
from qworker.store.connections import ConnectionFactory
from qworker.wire.ids import new_id_prefix
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.topologies.servers import until

SCRIPT = load_script("send_chunk")
KEYS = QueueKeys("shop", "emails")


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A separate server: it is made to forget its scripts."""
    with servers.start("valkey", guarded=False) as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server: servers.Server) -> None:
    server.redis().unlink(KEYS.ready[0], KEYS.stats)


def transport(url: str, *, wait_s: float = 0.0, give_up_s: float = 60.0) -> Transport:
    return Transport(ConnectionFactory(url), SCRIPT, RoomWait(wait_s), give_up_s=give_up_s)


def row(number: int, limit: int = 0) -> Command[int]:
    """Send one row without a ledger."""
    run = BulkRun(write_id="w", run_id="r", id_prefix=new_id_prefix(), kept_ms=60_000, limit=limit)
    return send_chunk(KEYS, run, Chunk("", number, [b"row%d" % number], number, number + 1))


def test_calls_after_an_error_are_not_sent_again(server: servers.Server) -> None:
    """The server forgets the script, and another client loads it, while calls are in flight: none is stored twice."""
    redis, writing = server.redis(), transport(server.url)

    def calls() -> int:
        return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    writing.execute(row(0))
    redis.script_flush()
    for number in range(1, 5):
        before = calls()
        writing.send(row(number), lambda _: None)
        # The reply is there, and not read yet.
        until(lambda before=before: calls() > before)
        if number == 2:
            redis.script_load(SCRIPT.source)
    writing.flush()
    writing.close()
    bodies = [item.partition(b"\n")[2] for item in redis.lrange(KEYS.ready[0], 0, -1)]
    assert sorted(bodies) == [b"row%d" % number for number in range(5)]


@pytest.mark.slow
def test_each_broken_connection_has_its_own_wait(server: servers.Server) -> None:
    """However long there was no room in between."""
    redis, writing = server.redis(), transport(server.url, wait_s=60.0, give_up_s=0.5)
    writing.execute(row(0, limit=1))

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
    writing.execute(row(1, limit=1))
    breaker.join()
    writing.close()
    assert redis.llen(KEYS.ready[0]) == 2
