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
from qworker.client.commands.command import Command, Soon
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.client.reaping import ReapedQueue
from qworker.client.settling import extend_all
from qworker.client.sync import Client
from qworker.errors import BrokenQueueError, InDoubtError, StaleReceiptError
from qworker.store.connection import ConnectionFactory
from qworker.store.scripts import load_script
from tests import servers
from tests.chaos import ChaosProxy

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


def test_many_messages_are_extended_in_one_call(namespace: str) -> None:
    """Of any number of leases: one script, one trip; each gets a new receipt, and its old one is stale."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_all(range(31))
        held = [message for count in (1, 9, 20) for message in queue.receive(count)]
        queue.extend_all(queue.receive(), "1m")
        redis = server.redis()
        redis.config_resetstat()
        longer = queue.extend_all(reversed(held), "10m")
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert [each.id for each in longer] == [each.id for each in reversed(held)]
        assert {each.receipt for each in longer}.isdisjoint(each.receipt for each in held)
        now_ms = int(redis.time()[0]) * 1000
        assert all(abs(each.deadline_ms - now_ms - 600_000) < 60_000 for each in longer)
        assert queue.ack(*held) == []
        assert len(queue.ack(*longer)) == 30
        assert queue.inspect().unacked == 1


def test_what_was_stale_is_not_extended(queue: Queue) -> None:
    """It is left out, also what is named twice; where nothing is held the list is empty, and nothing is made."""
    queue.send_all(range(4))
    held = queue.receive(4)
    queue.ack(held[1])
    longer = queue.extend_all([*held, held[0]], "10m")
    assert [each.json() for each in longer] == [0, 2, 3]
    assert queue.extend_all(held, "10m") == []
    assert queue.extend_all([], "10m") == []
    assert queue.inspect().unacked == 3
    assert len(queue.ack(*longer)) == 3


def test_extending_many_by_nothing_gives_them_back(queue: Queue) -> None:
    """As 0 does for one: they are visible now, uncounted, in their order."""
    queue.send_all(range(3))
    held = queue.receive(3)
    assert queue.extend_all(held, 0) == held
    assert queue.extend_all(held, 0) == []
    again = queue.receive(3)
    assert [(each.json(), each.receive_count) for each in again] == [(0, 1), (1, 1), (2, 1)]


def test_more_messages_and_leases_than_a_call_takes_are_extended(queue: Queue) -> None:
    """In several calls then."""
    queue.send_all(range(1270))
    held = [message for _ in range(70) for message in queue.receive()]
    held += [message for _ in range(2) for message in queue.receive(600)]
    longer = queue.extend_all(held, "10m")
    assert [each.json() for each in longer] == list(range(1270))
    assert len(queue.ack(*longer)) == 1270


def test_messages_of_several_shards_are_extended(client: Client, queue: Queue) -> None:
    """Each shard in a call of its own; a shard that is broken costs the others nothing, and is told."""
    queue.divide(3, wait="0s")
    for number in range(30):
        queue.send(number)
    held: list[Message] = []
    while len(held) < 30:
        held += queue.receive(7)
    longer = queue.extend_all(held, "10m")
    assert [each.json() for each in longer] == [each.json() for each in held]
    broken = held[0].receipt.shard
    ask(client, "DEL", queue.ref.shard(broken).keys.unacked)
    ask(client, "SET", queue.ref.shard(broken).keys.unacked, "x")
    with capture_logs() as logs:
        more = queue.extend_all(longer, "11m")
    assert {each.receipt.shard for each in more} == {0, 1, 2} - {broken}
    assert [each["event"] for each in logs] == ["settle_failed"]
    with pytest.raises(BrokenQueueError):
        queue.extend_all([each for each in longer if each.receipt.shard == broken], "11m")


@pytest.mark.parametrize("shards", [1, 3])
def test_an_extension_whose_reply_was_lost_is_found_again(
    store_url: str, namespace: str, shards: int
) -> None:
    """It is asked for again with the same leases: nothing is taken for stale that is held."""
    sha = load_script("split_all").sha.encode()
    with (
        ChaosProxy(store_url) as proxy,
        Client(ConnectionFactory(proxy.url), give_up_s=5.0) as client,
    ):
        queue = Queue(client, namespace, "q")
        if shards > 1:
            queue.divide(shards, wait="0s")
        for number in range(12):
            queue.send(number)
        held: list[Message] = []
        while len(held) < 12:
            held += queue.receive(12)
        proxy.cut_next_reply(sha)
        longer = queue.extend_all(held, "10m")
        assert proxy.replies_cut == 1
        assert len(longer) == 12
        assert len(queue.ack(*longer)) == 12


def _run(plan: Any, run: Any) -> Any:
    """Run a plan whose steps `run` makes, which returns the next one."""
    step = next(plan)
    try:
        while True:
            step = run(step)
    except StopIteration as end:
        return end.value


def test_shards_that_were_slow_are_asked_again_for_the_same(client: Client, queue: Queue) -> None:
    """What the first, short call may have done there is found; what it had said was stale stays so."""
    queue.divide(2, wait="0s")
    for number in range(12):
        queue.send(number)
    held: list[Message] = []
    while len(held) < 12:
        held += queue.receive(3)
    queue.ack(held[0])
    plan = extend_all(queue.ref, held, "10m")
    calls = 0

    def run(step: Any) -> Any:
        """Make a call; what it answers is lost at the first shard, and at no other."""
        nonlocal calls
        calls += 1
        reply = client.execute(step.command if isinstance(step, Soon) else step)
        return plan.throw(InDoubtError("lost")) if calls == 1 else plan.send(reply)

    longer = _run(plan, run)
    assert calls == 3
    assert [each.json() for each in longer] == [each.json() for each in held[1:]]
    assert len(queue.ack(*longer)) == 11


def test_many_are_extended_by_asyncio(store_url: str, namespace: str) -> None:
    """The same for the asynchronous queue."""

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send_all(range(5))
            held = await queue.receive(2) + await queue.receive(3)
            longer = await queue.extend_all(held, "10m")
            assert [each.json() for each in longer] == list(range(5))
            assert await queue.extend_all(held, "10m") == []
            assert len(await queue.ack(*longer)) == 5

    asyncio.run(work())
