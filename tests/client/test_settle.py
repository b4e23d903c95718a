"""Settle or extend several messages in one call, and reap without a receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.extend import extend_all
from qworker.client.message import Message
from qworker.client.queue import AsyncQueue, Queue
from qworker.client.receive.reap import ReapedQueue
from qworker.engine.command import Soon
from qworker.engine.raw import raw
from qworker.engine.scripts import load_script
from qworker.errors import BrokenQueueError, InDoubtError, InvalidOptionError, StaleReceiptError
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.chaos import ChaosProxy

VERBS = ("ack", "nack", "release", "bury")


@pytest.fixture
def queue(client: Client, namespace: str) -> Queue:
    return Queue(client, namespace, "q")


def ask(client: Client, *words: str | int) -> Any:
    return client.execute(raw(*words))


@pytest.mark.parametrize("verb", VERBS)
def test_many_messages_are_settled_in_one_call(namespace: str, verb: str) -> None:
    """Of any number of leases: one script, one trip, so all of them or none."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(30))
        held = [message for count in (1, 9, 20) for message in queue.receive(count)]
        settle = getattr(queue, verb)
        queue.send("warm")
        settle(*queue.receive())
        redis = server.redis()
        redis.config_resetstat()
        assert [message.id for message in settle(*held)] == [message.id for message in held]
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert queue.inspect().unacked == 0


@pytest.mark.parametrize(("verb", "calls"), [("ack", 1), ("nack", 8), ("release", 8), ("bury", 8)])
@pytest.mark.slow
def test_a_call_moves_a_bounded_number_of_messages_and_bytes(
    namespace: str, verb: str, calls: int
) -> None:
    """A call moves 100 messages or 1 MiB, in pieces of a lease or several leases; acks move nothing. Order is kept."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.create(maxsize="1MiB")
        large = [b'"%07d%s"' % (number, b"x" * 600_000) for number in range(3)]
        ids = [*queue.send_many(range(260)), *queue.send_many(large), *queue.send_many(range(240))]
        held = [*queue.receive(260), *queue.receive(), *queue.receive(), *queue.receive()]
        held += queue.receive(240)
        settle = getattr(queue, verb)
        queue.send("warm")
        settle(*queue.receive())
        redis = server.redis()
        redis.config_resetstat()
        assert [message.id for message in settle(*held)] == ids
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == calls
        if verb == "bury":
            assert [dead_letter.message.id for dead_letter in queue.dead(1000)][1:] == ids
        elif verb != "ack":
            peeked = [message.id for message in queue.peek(1000)]
            assert (peeked[:-1] if verb == "release" else peeked[1:]) == ids


SETTLE: Final[dict[str, Callable[[Queue, Any], object]]] = {
    "ack": lambda queue, wrong: queue.ack(wrong),
    "nack": lambda queue, wrong: queue.nack(wrong),
    "release": lambda queue, wrong: queue.release(wrong),
    "bury": lambda queue, wrong: queue.bury(wrong),
    "extend": lambda queue, wrong: queue.extend(wrong, "1m"),
    "extend_all": lambda queue, wrong: queue.extend_all([wrong], "1m"),
    "working": lambda queue, wrong: queue.working(wrong),
    "complete": lambda queue, wrong: queue.complete(wrong, 1, keep="1m"),
}


@pytest.mark.bad_input("values: a list of messages, a receipt or None to settle")
@pytest.mark.parametrize("verb", SETTLE)
@pytest.mark.parametrize("wrong", [[], "l:1", None], ids=["list", "receipt", "None"])
def test_what_is_not_a_message_is_refused(queue: Queue, verb: str, wrong: object) -> None:
    """The error says how to pass what `receive` returned, to a verb for several and to `extend`, which is for one."""
    said = r"is not a received message.*ack\(\*messages\), queue.extend_all\(messages"
    with pytest.raises(InvalidOptionError, match=said):
        SETTLE[verb](queue, wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_stale_messages_are_not_returned(queue: Queue, verb: str) -> None:
    """Messages that count are returned, with or without unique keys."""
    for number in range(6):
        queue.send(number, unique=f"k{number}" if number % 2 else None)
    held = queue.receive(6)
    queue.ack(held[1], held[2])
    counted = getattr(queue, verb)(*held)
    assert {message.body for message in counted} == {b"0", b"3", b"4", b"5"}


@pytest.mark.parametrize("verb", ["nack", "release", "bury"])
def test_only_stale_messages_are_an_error(queue: Queue, verb: str) -> None:
    """As for a single one; no messages at all are not an error."""
    queue.send_many(range(2))
    held = queue.receive(2)
    queue.ack(*held)
    with pytest.raises(StaleReceiptError):
        getattr(queue, verb)(*held)
    assert getattr(queue, verb)() == []


def test_released_messages_keep_their_order(queue: Queue) -> None:
    """They come back ahead of the others, as they were received."""
    queue.send_many(range(5))
    queue.release(*queue.receive(3))
    assert [message.body for message in queue.receive(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_of_all_shards_are_settled(client: Client, queue: Queue) -> None:
    """Each in the shard that delivered it; a broken shard costs the others nothing, and is logged."""
    queue.divide(3, wait="0s")
    for number in range(6):
        queue.send(number)
    held = [message for _ in range(3) for message in queue.receive(6)]
    assert len(queue.nack(*held)) == 6
    held = [message for _ in range(3) for message in queue.receive(6)]
    broken = Queue(client, queue.keys.ready[0].partition(":")[0], "q/1")
    ask(client, "SET", broken.keys.stats, "x")
    with capture_logs() as lines:
        counted = queue.ack(*held)
    assert {message.receipt.shard for message in counted} == {0, 2}
    assert [(line["event"], line["queue"]) for line in lines] == [("settle_failed", "q/1")]
    with pytest.raises(BrokenQueueError):
        queue.ack(*(message for message in held if message.receipt.shard == 1))


def test_async_settles_many(queue: Queue, store_url: str, namespace: str) -> None:
    """The async client runs the same plans."""
    queue.send_many(range(4))

    async def work() -> list[Message]:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            aqueue = AsyncQueue(aclient, namespace, "q")
            return await aqueue.release(*await aqueue.receive(4))

    assert len(asyncio.run(work())) == 4
    assert queue.inspect().ready == 4


def test_a_reap_reports_what_it_did(client: Client, queue: Queue) -> None:
    """Delayed messages become ready, lost ones come back, and expired ones end, without a receive."""
    assert queue.reap() == ReapedQueue()
    queue.send("delayed", delay="1ms")
    queue.send_many(range(2), ttl="1ms")
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
    """Its counts are sums, and its time is the earliest."""
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
        queue.send_many(range(31))
        held = [message for count in (1, 9, 20) for message in queue.receive(count)]
        queue.extend_all(queue.receive(), "1m")
        redis = server.redis()
        redis.config_resetstat()
        longer = queue.extend_all(reversed(held), "10m")
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert [message.id for message in longer] == [message.id for message in reversed(held)]
        assert {message.receipt for message in longer}.isdisjoint(
            message.receipt for message in held
        )
        now_ms = int(redis.time()[0]) * 1000
        assert all(abs(message.deadline_ms - now_ms - 600_000) < 60_000 for message in longer)
        assert queue.ack(*held) == []
        assert len(queue.ack(*longer)) == 30
        assert queue.inspect().unacked == 1


def test_stale_messages_are_not_extended(queue: Queue) -> None:
    """They are left out, and so are duplicates; if none is held the list is empty, and no lease is created."""
    queue.send_many(range(4))
    held = queue.receive(4)
    queue.ack(held[1])
    longer = queue.extend_all([*held, held[0]], "10m")
    assert [message.json() for message in longer] == [0, 2, 3]
    assert queue.extend_all(held, "10m") == []
    assert queue.extend_all([], "10m") == []
    assert queue.inspect().unacked == 3
    assert len(queue.ack(*longer)) == 3


def test_extending_many_by_nothing_gives_them_back(queue: Queue) -> None:
    """As 0 does for one message: they are visible now, uncounted, in their order."""
    queue.send_many(range(3))
    held = queue.receive(3)
    assert queue.extend_all(held, 0) == held
    assert queue.extend_all(held, 0) == []
    again = queue.receive(3)
    assert [(message.json(), message.receive_count) for message in again] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_more_messages_and_leases_than_a_call_takes_are_extended(queue: Queue) -> None:
    """In several calls."""
    queue.send_many(range(1270))
    held = [message for _ in range(70) for message in queue.receive()]
    held += [message for _ in range(2) for message in queue.receive(600)]
    longer = queue.extend_all(held, "10m")
    assert [message.json() for message in longer] == list(range(1270))
    assert len(queue.ack(*longer)) == 1270


def test_messages_of_several_shards_are_extended(client: Client, queue: Queue) -> None:
    """Each shard in its own call; a broken shard costs the others nothing, and is logged."""
    queue.divide(3, wait="0s")
    for number in range(30):
        queue.send(number)
    held: list[Message] = []
    while len(held) < 30:
        held += queue.receive(7)
    longer = queue.extend_all(held, "10m")
    assert [message.json() for message in longer] == [message.json() for message in held]
    broken = held[0].receipt.shard
    ask(client, "DEL", queue.ref.shard(broken).keys.unacked)
    ask(client, "SET", queue.ref.shard(broken).keys.unacked, "x")
    with capture_logs() as logs:
        more = queue.extend_all(longer, "11m")
    assert {message.receipt.shard for message in more} == {0, 1, 2} - {broken}
    assert [line["event"] for line in logs] == ["settle_failed"]
    with pytest.raises(BrokenQueueError):
        queue.extend_all([message for message in longer if message.receipt.shard == broken], "11m")


@pytest.mark.parametrize("shards", [1, 3])
def test_an_extension_whose_reply_was_lost_is_resumed(
    store_url: str, namespace: str, shards: int
) -> None:
    """It is repeated with the same leases, so no held message counts as stale."""
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
    """Run a plan; `run` makes a step and returns the next one."""
    step = next(plan)
    try:
        while True:
            step = run(step)
    except StopIteration as end:
        return end.value


def test_slow_shards_are_repeated_with_the_same_leases(client: Client, queue: Queue) -> None:
    """What the first, short call may have done there counts; messages that it found stale stay stale."""
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
        """Make a call; the reply of the first shard is lost."""
        nonlocal calls
        calls += 1
        reply = client.execute(step.command if isinstance(step, Soon) else step)
        return plan.throw(InDoubtError("lost")) if calls == 1 else plan.send(reply)

    longer = _run(plan, run)
    assert calls == 3
    assert [message.json() for message in longer] == [message.json() for message in held[1:]]
    assert len(queue.ack(*longer)) == 11


def test_many_are_extended_by_asyncio(store_url: str, namespace: str) -> None:
    """The same for the async queue."""

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send_many(range(5))
            held = await queue.receive(2) + await queue.receive(3)
            longer = await queue.extend_all(held, "10m")
            assert [message.json() for message in longer] == list(range(5))
            assert await queue.extend_all(held, "10m") == []
            assert len(await queue.ack(*longer)) == 5

    asyncio.run(work())
