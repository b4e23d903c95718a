"""The cost of a message on the plain path: round trips, and commands that Redis runs for it.

Other features (reaping on receive, several queues, claims, holds) cost nothing unless they are used. The server counts
its commands, also those inside scripts; a script adds the ones below to its own call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.receive import settle_receive
from qworker.engine.settle import Outcomes
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests import servers

#: Commands of a send, of a receive and of an ack of one message: of the short ways of the scripts.
SEND_ONE = {
    "evalsha": 1, "exists": 1, "hmget": 1, "time": 1, "rpush": 1, "hset": 1,
}  # fmt: skip
RECEIVE_ONE = {
    "evalsha": 1, "llen": 1, "exists": 1, "lindex": 1, "hmget": 1, "time": 1, "zadd": 1, "hsetnx": 1, "hset": 2,
    "ltrim": 1, "zcard": 1,
}  # fmt: skip
ACK_ONE = {
    "evalsha": 1, "hget": 1, "hkeys": 1, "hmget": 1, "time": 1, "zcard": 1, "zrem": 1, "del": 1, "hset": 1,
}  # fmt: skip
#: Of a worker's call, which acks one message and receives the next one.
WORKER_ONE = {
    "evalsha": 1, "llen": 1, "exists": 1, "lindex": 1, "hmget": 1, "time": 1, "renamenx": 1, "zadd": 1, "zrem": 1,
    "hset": 2, "ltrim": 1,
}  # fmt: skip
#: Of a send of several messages that fit into one write (500).
SEND = {
    "evalsha": 1, "exists": 1, "time": 1, "hmget": 1, "rpush": 1, "hset": 1, "llen": 1,
}  # fmt: skip
#: Of a receive; the first message is read alone, the others 33 at a time.
RECEIVE = {
    "evalsha": 1, "time": 1, "hmget": 1, "exists": 1, "zcard": 1, "llen": 1, "lindex": 1, "lrange": 3, "zadd": 1,
    "hsetnx": 1, "ltrim": 1, "hset": 2,
}  # fmt: skip
#: Of an ack of a whole batch.
ACK_BATCH = {
    "evalsha": 1, "time": 1, "hmget": 1, "hget": 2, "zcard": 1, "del": 1, "zrem": 1, "hset": 1,
}  # fmt: skip
#: Of a worker's call, which settles a batch and receives the next one.
WORKER = {
    "evalsha": 1, "llen": 1, "exists": 1, "lindex": 1, "lrange": 3, "hget": 1, "hmget": 1, "time": 1, "zadd": 1,
    "hsetnx": 1, "del": 1, "zrem": 1, "hset": 1, "ltrim": 1,
}  # fmt: skip
#: Of a call of a worker with several slots, which acks some of a batch and receives as many.
WORKER_SLOTS = {
    "evalsha": 1, "llen": 1, "exists": 2, "lindex": 1, "lrange": 1, "hget": 1, "hmget": 1, "time": 1, "zadd": 1,
    "hsetnx": 1, "hdel": 1, "hset": 2, "ltrim": 1, "zcard": 1,
}  # fmt: skip


class Meter:
    """Counts the commands of a separate server, by name."""

    def __init__(self, server: servers.Server) -> None:
        self.url, self._redis = server.url, server.redis()

    def cost(self, call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
        """Make a call; returns its result and the commands that the server ran."""
        self._redis.config_resetstat()
        result = call()
        stats = self._redis.info("commandstats")
        counts = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        ours = {"config|resetstat", "info", "hello", "client|setinfo", "client|setname", "select"}
        return result, {name: number for name, number in counts.items() if name not in ours}


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    """A separate server."""
    with servers.start("valkey", far=False) as server:
        yield Meter(server)


def _assert_no_dearer(counts: dict[str, int], allowed: dict[str, int]) -> None:
    """No more commands than allowed, and so no more round trips, each of which is a command at least."""
    dearer = {name: number for name, number in counts.items() if number > allowed.get(name, 0)}
    assert dearer == {}, f"of {counts}"


def _check(meter: Meter, queue: Any, finish: Callable[[Any], Any], count: int) -> None:
    bodies = list(range(count))
    # Connection, scripts and index first: they are paid once.
    finish(queue.send_many(bodies))
    finish(queue.ack(*finish(queue.receive(count))))
    _, sending = meter.cost(lambda: finish(queue.send_many(bodies)))
    messages, receiving = meter.cost(lambda: finish(queue.receive(count)))
    counted, acking = meter.cost(lambda: finish(queue.ack(*messages)))
    assert len(messages) == len(counted) == count
    if count == 1:
        _assert_no_dearer(sending, SEND_ONE)
        _assert_no_dearer(receiving, RECEIVE_ONE)
        _assert_no_dearer(acking, ACK_ONE)
    else:
        _assert_no_dearer(sending, SEND)
        _assert_no_dearer(receiving, RECEIVE)
        _assert_no_dearer(acking, ACK_BATCH)


@pytest.mark.parametrize("count", [1, 100])
def test_plain_path(meter: Meter, count: int, namespace: str) -> None:
    """Send, receive and ack are a round trip each, for one message as for a hundred."""
    with Client(ConnectionFactory(meter.url)) as client:
        _check(meter, Queue(client, namespace, "q"), lambda result: result, count)


@pytest.mark.parametrize("count", [1, 100])
def test_plain_path_async(meter: Meter, count: int, namespace: str) -> None:
    """The async queue costs the same."""

    async def client() -> AsyncClient:
        return AsyncClient(ConnectionFactory(meter.url))

    with asyncio.Runner() as runner:
        made = runner.run(client())
        _check(meter, AsyncQueue(made, namespace, "q"), runner.run, count)
        runner.run(made.close())


def test_worker_path(meter: Meter, namespace: str) -> None:
    """A worker settles a batch and receives the next one in one round trip: less than half a command per message."""
    keys = QueueKeys(namespace, "q")
    with Client(ConnectionFactory(meter.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(300))
        client.execute(settle_receive(keys, "a", 100))
        done = [Outcomes("a", ack_all=True)]
        batch, counts = meter.cost(
            lambda: client.execute(settle_receive(keys, "b", 100, outcomes=done))
        )
        assert (len(batch.items), batch.settled) == (100, (100,))
        _assert_no_dearer(counts, WORKER)


def test_worker_path_of_several_slots(meter: Meter, namespace: str) -> None:
    """A worker that acks three of five messages and receives three more does it in one trip and one short script."""
    keys = QueueKeys(namespace, "q")
    with Client(ConnectionFactory(meter.url)) as client:
        Queue(client, namespace, "q").send_many(range(20))
        client.execute(settle_receive(keys, "a", 5, each=True))
        done = [Outcomes("a", acks=[1, 4, 5])]
        batch, counts = meter.cost(
            lambda: client.execute(settle_receive(keys, "b", 3, outcomes=done, each=True))
        )
        assert (len(batch.items), batch.settled) == (3, (3,))
        _assert_no_dearer(counts, WORKER_SLOTS)
        done = [Outcomes("a", acks=[2, 3, 4]), Outcomes("b", acks=[2])]
        batch = client.execute(settle_receive(keys, "c", 4, outcomes=done, each=True))
        assert (len(batch.items), batch.settled) == (4, (2, 1))
        seen = Queue(client, namespace, "q").inspect()
        told = {
            name: seen.stats[name]
            for name in ("sent", "stored", "received", "acked", "unacked", "stale")
        }
        assert told == {
            "sent": 20,
            "stored": 14,
            "received": 12,
            "acked": 6,
            "unacked": 6,
            "stale": 1,
        }
        assert (seen.leases, seen.ready) == (2, 8)


def test_worker_path_of_one(meter: Meter, namespace: str) -> None:
    """A worker acks one message and receives the next one in one round trip, by the short way of the script."""
    keys = QueueKeys(namespace, "q")
    with Client(ConnectionFactory(meter.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(3))
        client.execute(settle_receive(keys, "a", 1))
        done = [Outcomes("a", acks=["0"])]
        batch, counts = meter.cost(
            lambda: client.execute(settle_receive(keys, "b", 1, outcomes=done, caller="host:1"))
        )
        assert (len(batch.items), batch.settled) == (1, (1,))
        _assert_no_dearer(counts, WORKER_ONE)
        assert sum(WORKER_ONE.values()) + sum(SEND_ONE.values()) <= 18


def test_priorities_in_use(meter: Meter, namespace: str) -> None:
    """A queue with priorities takes the short ways too, and asks for its attributes and a length per priority."""
    with Client(ConnectionFactory(meter.url)) as client:
        queue = Queue(client, namespace, "q")
        for priority in (5, 7):
            queue.send("first", priority=priority)
            queue.ack(*queue.receive(1))
        for priority in (0, 5):
            _, sending = meter.cost(lambda priority=priority: queue.send("x", priority=priority))
            (message,), receiving = meter.cost(lambda: queue.receive(1))
            _, acking = meter.cost(lambda message=message: queue.ack(message))
            _assert_no_dearer(sending, {**SEND_ONE, "hmget": 2})
            _assert_no_dearer(receiving, {**RECEIVE_ONE, "hmget": 2, "llen": 3})
            _assert_no_dearer(acking, ACK_ONE)
