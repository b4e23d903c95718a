"""A producer of one queue cannot change what workers of another one do: judged by effects, with its role's rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from qworker.cli.main import cli
from qworker.client.queue import Queue
from qworker.client.sync import Client
from qworker.daemon.reaper import Reaper
from qworker.store.connection import ConnectionFactory
from tests.security.guarded import TESTER, GuardedServer, guarded

NAMESPACE = "shop"
INDEX = f"{NAMESPACE}:queues"
#: What somebody might try who wants to harm queue `orders` and has the rights to send to `mail`.
ATTEMPTS: dict[str, Any] = {
    "a later division": lambda r: r.hset(INDEX, "orders", "1 1 999999999999999"),
    "more shards": lambda r: r.hset(INDEX, "orders", "64 64 999999999999999"),
    "the shards as queues": lambda r: r.hset(
        INDEX, mapping={f"orders/{n}": "1" for n in range(64)}
    ),
    "no entry": lambda r: r.hdel(INDEX, "orders"),
    "no index": lambda r: r.delete(INDEX),
    "another type": lambda r: r.set(INDEX, "x"),
    "an expiry": lambda r: r.pexpire(INDEX, 1),
    "the division itself": lambda r: r.hset(f"{NAMESPACE}:{{orders}}:meta", "shards", "1 1 1"),
    "a mark": lambda r: r.hset(f"{NAMESPACE}:{{orders/1}}:meta", "shard", "draining 1 9"),
    "a pause": lambda r: r.hset(f"{NAMESPACE}:{{orders}}:meta", "paused", "all"),
    "a name that looks alike": lambda r: r.hset(INDEX, "orders\n", "1"),
    "junk": lambda r: [
        r.hset(INDEX, mapping={f"junk{start + n}": "1 1 9" for n in range(1000)})
        for start in range(0, 20_000, 1000)
    ],
    "large junk": lambda r: [r.hset(INDEX, f"J{n}", b"x" * 1_000_000) for n in range(20)],
}


@pytest.fixture(scope="module", params=["valkey", "redis"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedServer]:
    """A server with a producer and a consumer of `mail` alone."""
    directory = tmp_path_factory.mktemp("acl")
    with guarded(request.param, NAMESPACE, directory, queues=["mail"]) as server:
        yield server


def client_of(server: GuardedServer, role: str) -> Client:
    """A client with the rights of a role."""
    return Client(ConnectionFactory(server.url(role)))


@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_nothing_that_it_writes_moves_another_queue(
    server: GuardedServer, role: str, attempt: str
) -> None:
    """Messages of `orders`, which is divided, are sent, reaped and received as before, by known and by new clients."""
    with client_of(server, TESTER) as own, client_of(server, TESTER) as fresh:
        queue = Queue(own, NAMESPACE, "orders")
        queue.divide(3, wait=0)
        queue.send({"n": 0})
        reaper = Reaper(own, NAMESPACE)
        reaper.tick()
        with server.redis(role) as attacker, suppress(redis.ResponseError):
            ATTEMPTS[attempt](attacker)
        for sender in (queue, Queue(fresh, NAMESPACE, "orders")):
            sender.ref.doubt()
            for n in range(6):
                sender.send({"n": n}, delay="1ms")
        for each in (reaper, Reaper(fresh, NAMESPACE)):
            each.tick()
            assert {"orders", "orders/1", "orders/2"} <= {
                keys.queue for keys in each.registry.queues
            }
        while queue.inspect().delayed:
            reaper.tick()
        receiver = Queue(fresh, NAMESPACE, "orders")
        assert len(receiver.ack(*receiver.receive(100))) == 13
        assert queue.division().active == 3
        queue.remove()
    server.refused()


def test_a_producer_still_announces_its_own_queue(server: GuardedServer) -> None:
    """It adds names to the index, and can neither read it nor take any out."""
    with server.redis() as tester:
        tester.delete(INDEX)
        with client_of(server, "producer") as client:
            Queue(client, NAMESPACE, "mail").send({"n": 1})
        assert tester.hkeys(INDEX) == [b"mail"]
        assert not server.has_refused()
        with server.redis("producer") as producer:
            for forbidden in (
                lambda: producer.hdel(INDEX, "mail"),
                lambda: producer.hgetall(INDEX),
                lambda: producer.delete(INDEX),
            ):
                with pytest.raises(redis.ResponseError, match="permission"):
                    forbidden()
        server.refused()


def test_a_producer_of_a_divided_queue_heals_it(server: GuardedServer) -> None:
    """Its rights are enough to open a shard that has forgotten, and to follow a division."""
    with client_of(server, TESTER) as own, client_of(server, "producer") as client:
        queue = Queue(own, NAMESPACE, "mail")
        queue.divide(3, wait=0)
        with server.redis() as tester:
            tester.delete(queue.ref.shard_of(1).keys.meta)
            sender = Queue(client, NAMESPACE, "mail")
            for n in range(9):
                sender.send({"n": n})
            before = tester.hget(queue.keys.meta, "shards")
            queue.divide(1, wait=0)
            tester.hset(queue.keys.meta, "shards", before)
            for n in range(9):
                sender.send({"n": n})
        assert queue.division().active == 1
        queue.remove()
    assert not server.has_refused()


def test_the_command_line_lists_queues_among_junk(server: GuardedServer, capsys: Any) -> None:
    """20,000 entries that others wrote are passed over, and named by fsck."""
    from click.testing import CliRunner

    with server.redis() as tester, client_of(server, TESTER) as own:
        Queue(own, NAMESPACE, "mail").send({"n": 1})
        for start in range(0, 20_000, 10_000):
            tester.hset(INDEX, mapping={f"junk{start + n}": "1 1 9" for n in range(10_000)})
        url = server.url(TESTER)
        ran = CliRunner().invoke(cli, ["--url", url, "--namespace", NAMESPACE, "queue", "ls"])
        assert ran.exit_code == 0, ran.output
        assert "mail" in ran.stdout
        assert "junk" not in ran.stdout
        ran = CliRunner().invoke(
            cli, ["--url", url, "--namespace", NAMESPACE, "fsck", "--repair", "--yes"]
        )
        assert "and 19,98" in ran.stdout
        assert tester.hkeys(INDEX) == [b"mail"]
        Queue(own, NAMESPACE, "mail").remove()
