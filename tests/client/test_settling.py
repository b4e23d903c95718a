"""Settling several messages in one call, and a reaper's work without a receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker.client.aio import AsyncClient
from qworker.client.aqueue import AsyncQueue
from qworker.client.commands.command import Command
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.client.reaping import ReapedQueue
from qworker.client.sync import Client
from qworker.errors import BrokenQueueError, StaleReceiptError
from qworker.store.connection import ConnectionFactory
from tests import servers

VERBS = ("ack", "nack", "release", "bury")


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as made:
        yield made


@pytest.fixture
def queue(client: Client, namespace: str) -> Queue:
    return Queue(client, namespace, "q")


def ask(client: Client, *words: str | int) -> Any:
    return client.execute(Command(None, (), words, lambda reply: reply))


@pytest.mark.parametrize("verb", VERBS)
def test_many_messages_are_settled_in_one_call(namespace: str, verb: str) -> None:
    """Of any number of leases: one script, one trip, so all of them or none."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_all(range(30))
        held = [message for count in (1, 9, 20) for message in queue.receive(count)]
        settle = getattr(queue, verb)
        queue.send("warm")
        settle(*queue.receive())
        redis = server.redis()
        redis.config_resetstat()
        assert [each.id for each in settle(*held)] == [each.id for each in held]
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert queue.inspect().unacked == 0


@pytest.mark.parametrize("verb", VERBS)
def test_what_was_stale_is_not_returned(queue: Queue, verb: str) -> None:
    """Those that count are told apart from those that do not, whichever have unique keys."""
    for number in range(6):
        queue.send(number, unique=f"k{number}" if number % 2 else None)
    held = queue.receive(6)
    queue.ack(held[1], held[2])
    counted = getattr(queue, verb)(*held)
    assert {each.body for each in counted} == {b"0", b"3", b"4", b"5"}


@pytest.mark.parametrize("verb", ["nack", "release", "bury"])
def test_if_all_are_stale_it_is_an_error(queue: Queue, verb: str) -> None:
    """As for a single one; for no message at all there is nothing to do."""
    queue.send_all(range(2))
    held = queue.receive(2)
    queue.ack(*held)
    with pytest.raises(StaleReceiptError):
        getattr(queue, verb)(*held)
    assert getattr(queue, verb)() == []


def test_released_messages_keep_their_order(queue: Queue) -> None:
    """They come back in front of the others as they were received."""
    queue.send_all(range(5))
    queue.release(*queue.receive(3))
    assert [each.body for each in queue.receive(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_of_all_shards_are_settled(client: Client, queue: Queue) -> None:
    """Each in the shard that delivered it; a broken one costs the others nothing, and is named in the log."""
    queue.divide(3, wait="0s")
    for number in range(6):
        queue.send(number)
    held = [message for _ in range(3) for message in queue.receive(6)]
    assert len(queue.nack(*held)) == 6
    held = [message for _ in range(3) for message in queue.receive(6)]
    broken = Queue(client, queue.keys.ready[0].partition(":")[0], "q/1")
    ask(client, "SET", broken.keys.ready[0], "x")
    with capture_logs() as lines:
        counted = queue.ack(*held)
    assert {each.receipt.shard for each in counted} == {0, 2}
    assert [(each["event"], each["queue"]) for each in lines] == [("settle_failed", "q/1")]
    with pytest.raises(BrokenQueueError):
        queue.ack(*(each for each in held if each.receipt.shard == 1))


def test_async_settles_many(queue: Queue, store_url: str, namespace: str) -> None:
    """The async client runs the same plans."""
    queue.send_all(range(4))

    async def work() -> list[Message]:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            aqueue = AsyncQueue(aclient, namespace, "q")
            return await aqueue.release(*await aqueue.receive(4))

    assert len(asyncio.run(work())) == 4
    assert queue.inspect().ready == 4


def test_a_reap_says_what_it_did(client: Client, queue: Queue) -> None:
    """Delayed messages become ready, lost ones come back, and what has expired ends, without a receive."""
    assert queue.reap() == ReapedQueue()
    queue.send("delayed", delay="1ms")
    queue.send_all(range(2), ttl="1ms")
    held_id = queue.send("held", delay="1h")
    assert queue.hold(held_id) == [held_id]
    time.sleep(0.005)
    done = queue.reap()
    assert (done.promoted, done.ended, done.again_ms) == (1, 2, None)
    queue.send("other")
    queue.receive(2, visibility="1s")
    (lease,) = ask(client, "ZRANGE", queue.keys.unacked, 0, -1)
    ask(client, "ZADD", queue.keys.unacked, queue.inspect().now_ms - 1, lease.decode())
    done = queue.reap()
    assert (done.leases, done.timed_out, done.dead) == (1, 2, 0)
    assert queue.inspect().ready == 2


def test_a_reap_is_for_every_shard(queue: Queue) -> None:
    """Its figures are sums, and the soonest of the times."""
    queue.divide(3, wait="0s")
    for _ in range(6):
        queue.send("delayed", delay="1ms")
    queue.send("later", delay="1h")
    time.sleep(0.005)
    done = queue.reap()
    assert done.promoted == 6
    assert done.again_ms is not None
    assert 3_590_000 < done.again_ms <= 3_600_000
