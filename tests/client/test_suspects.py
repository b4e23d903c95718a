"""Messages that timed out alone do not starve behind newer ones, also without a worker."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.queue import AsyncQueue, Queue
from qworker.client.shard_state import ShardState
from qworker.daemon.reaper import Reaper
from qworker.engine.raw import raw
from qworker.engine.receive import UNKNOWN, Batch
from qworker.store.connections import ConnectionFactory
from tests.servers import start
from tests.timing import Watch

#: Receives within which a lone suspect must come: the first one reports it, and it is due at once.
SOON = 3


def suspect(client: Client, queue: Queue, *ids: str) -> None:
    """Store messages as after a delivery that timed out alone."""
    items = [f"q1 {name} 1 1 0 1 0\n{name}" for name in ids]
    client.execute(raw("RPUSH", queue.keys.suspect, *items, decode=int))
    words = ("HINCRBY", queue.keys.stats, "stored", len(ids))
    client.execute(raw(*words, decode=int))


def number_of_receives(receive: Callable[[], list[Message]], wanted: str, most: int) -> int:
    """Count the receives until a message comes, which must come alone."""
    for number in range(1, most + 1):
        messages = receive()
        if wanted in {message.id for message in messages}:
            assert len(messages) == 1
            return number
    raise AssertionError(f"{wanted} has not come in {most} receives")


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_a_suspect_is_not_kept_waiting_by_newer_messages(
    client: Client, namespace: str, verb: str, count: int
) -> None:
    """Whatever the number of ready messages and the size of a batch."""
    queue = Queue(client, namespace, "q")
    queue.send_many(range(1000))
    suspect(client, queue, "victim")
    receive = getattr(queue, verb)
    assert number_of_receives(lambda: receive(count, reap=count == 1), "victim", SOON) <= SOON


def test_a_suspect_of_any_shard_comes_soon(client: Client, namespace: str) -> None:
    """Each shard has its turns."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    for number in range(100):
        queue.send(number)
    suspect(client, Queue(client, namespace, "q/2"), "victim")
    number_of_receives(lambda: queue.receive(2), "victim", 3 * SOON)


def test_a_suspect_of_a_later_queue_is_not_kept_out_by_an_earlier_one(
    client: Client, namespace: str
) -> None:
    """It is delivered alone, so a first queue that always has a few messages must not keep it out forever."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    suspect(client, second, "victim")

    def receive() -> list[Message]:
        first.send("newer")
        return first.receive(5, then=[second])

    number_of_receives(receive, "victim", SOON)


def test_nothing_comes_with_a_suspect(client: Client, namespace: str) -> None:
    """A worker that dies of it loses nothing else: the queues behind it are not received from."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    suspect(client, first, "victim")
    second.send("other")
    assert [message.id for message in first.receive(5, then=[second])] == ["victim"]
    assert second.inspect().ready == 1


def test_an_async_receiver_gets_a_suspect_soon(
    client: Client, store_url: str, namespace: str
) -> None:
    """The turns are kept by the plan, which both clients run."""
    queue = Queue(client, namespace, "q")
    queue.send_many(range(100))
    suspect(client, queue, "victim")

    async def work() -> list[str]:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            aqueue = AsyncQueue(aclient, namespace, "q")
            return [message.id for _ in range(SOON) for message in await aqueue.receive(5)]

    assert "victim" in asyncio.run(work())


@pytest.mark.slow
def test_many_suspects_leave_the_others_their_turns(client: Client, namespace: str) -> None:
    """Three receives in four go to what is ready, however many suspects wait."""
    queue = Queue(client, namespace, "q")
    queue.send_many([b"new"] * 400)
    suspect(client, queue, *(f"s{number}" for number in range(100)))
    received = [message for _ in range(100) for message in queue.receive()]
    suspects = sum(message.timeouts for message in received)
    assert 20 <= suspects <= 40


def _batch(*, alone: bool, suspects: int) -> Batch:
    return Batch(
        "L",
        [b"x"],
        ["0"],
        0,
        0,
        ready_left=0,
        hint_ms=UNKNOWN,
        alone=alone,
        degraded=False,
        settled=(),
        suspects=suspects,
    )


def test_turns_go_by_number_and_by_time() -> None:
    """Every fourth receive, or half a second after the last suspect, whichever is sooner."""
    state = ShardState()
    state.received(_batch(alone=True, suspects=9), 10.0)
    turns = []
    for _ in range(4):
        turns.append(state.suspect_first(10.1))
        state.received(_batch(alone=False, suspects=9), 10.1)
    assert turns == [False, False, False, True]
    state.received(_batch(alone=True, suspects=9), 11.0)
    assert [state.suspect_first(at) for at in (11.4, 11.5)] == [False, True]
    state.received(_batch(alone=False, suspects=0), 12.0)
    assert not state.suspect_first(99.0)


def test_one_client_in_four_begins_with_suspects() -> None:
    """A program that receives once per run does not know of suspects: one run in four requests one."""
    random.seed(1)
    first = sum(ShardState().suspect_first(0.0) for _ in range(400))
    assert 60 <= first <= 140


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.nightly("test_a_suspect_is_not_kept_waiting_by_newer_messages")
def test_a_lone_timeout_among_100_000_newer_comes_in_time(
    client: Client, namespace: str, count: int
) -> None:
    """Within the visibility timeout, a tick of the reaper and a second, to a program that is not a worker."""
    queue = Queue(client, namespace, "q")
    queue.create(visibility="1s", max_receives=100)
    lost_id = queue.send(b"lost")
    stop = threading.Event()

    def reap() -> None:
        with Client(client.factory) as reaping:
            reaper = Reaper(reaping, namespace, tick_ms=200)
            while not stop.wait(0.2):
                reaper.tick()

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        # The watch for gaps begins with the first tick.
        queue.send_many([b"new"] * 100_000)
        (lost,) = queue.receive()
        assert lost.id == lost_id
        watch = Watch(os.getpid())
        while True:
            messages = queue.receive(count)
            if any(message.id == lost_id for message in messages):
                break
            queue.ack(*messages)
            time.sleep(0.005)  # what a program does with them
            # Visibility, tick and a second; the rest is for a machine that is busy.
            assert watch.passed_s() <= 1 + 0.2 + 1 + 10
        assert queue.inspect().ready > 10_000
    finally:
        stop.set()
        thread.join()


def test_a_suspect_is_read_once(namespace: str) -> None:
    """To take it off its list returned it to the script a second time, which with a large body took milliseconds."""
    with start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        suspect(client, queue, "s1")
        redis = server.redis()
        redis.config_resetstat()
        for _ in range(SOON):
            found = queue.receive()
            if found:
                break
        assert [message.id for message in found] == ["s1"]
        commands = redis.info("commandstats")
        assert commands["cmdstat_lindex"]["calls"] == 1
        assert "cmdstat_lpop" not in commands
        assert queue.receive() == []
