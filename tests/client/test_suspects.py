"""Messages that timed out alone, received by programs that are no workers: they do not starve behind newer ones."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from qworker.client.aio import AsyncClient
from qworker.client.aqueue import AsyncQueue
from qworker.client.commands.command import Command
from qworker.client.commands.receiving import UNKNOWN, Batch
from qworker.client.message import Message
from qworker.client.place_state import PlaceState
from qworker.client.queue import Queue
from qworker.client.sync import Client
from qworker.daemon.reaper import Reaper
from qworker.store.connection import ConnectionFactory

#: Receives in which a lone suspect must have come: it is known after the first, and due at once then.
SOON = 3


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as made:
        yield made


def suspect(client: Client, queue: Queue, *ids: str) -> None:
    """Leave messages as they are after a delivery that timed out alone."""
    items = [f"q1 {each} 1 1 0 1 0\n{each}" for each in ids]
    client.execute(Command(None, (), ("RPUSH", queue.keys.suspect, *items), int))
    words = ("HINCRBY", queue.keys.stats, "stored", len(ids))
    client.execute(Command(None, (), words, int))


def number_of_receives(receive: Callable[[], list[Message]], wanted: str, most: int) -> int:
    """How many receives it takes until a message has come; it comes alone."""
    for number in range(1, most + 1):
        messages = receive()
        if wanted in {each.id for each in messages}:
            assert len(messages) == 1
            return number
    raise AssertionError(f"{wanted} has not come in {most} receives")


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_a_suspect_is_not_kept_waiting_by_newer_messages(
    client: Client, namespace: str, verb: str, count: int
) -> None:
    """However many are ready, and whatever the size of a batch."""
    queue = Queue(client, namespace, "q")
    queue.send_all(range(1000))
    suspect(client, queue, "victim")
    receive = getattr(queue, verb)
    assert number_of_receives(lambda: receive(count, reap=count == 1), "victim", SOON) <= SOON


def test_a_suspect_of_any_shard_comes_soon(client: Client, namespace: str) -> None:
    """Each shard has its turns; and so has a queue behind others that are never empty."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    for number in range(100):
        queue.send(number)
    suspect(client, Queue(client, namespace, "q/2"), "victim")
    number_of_receives(lambda: queue.receive(2), "victim", 3 * SOON)


def test_a_suspect_of_a_later_queue_is_not_kept_out_by_an_earlier_one(
    client: Client, namespace: str
) -> None:
    """Alone is how it is delivered, so a first queue that always has a few messages must not keep it out for ever."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    suspect(client, second, "victim")

    def receive() -> list[Message]:
        first.send("newer")
        return first.receive(5, then=[second])

    number_of_receives(receive, "victim", SOON)


def test_nothing_comes_with_a_suspect(client: Client, namespace: str) -> None:
    """Who dies of it takes nothing else along: the queues behind it are not asked."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    suspect(client, first, "victim")
    second.send("other")
    assert [each.id for each in first.receive(5, then=[second])] == ["victim"]
    assert second.inspect().ready == 1


def test_an_async_receiver_gets_a_suspect_soon(
    client: Client, store_url: str, namespace: str
) -> None:
    """The turns are kept by the plan, which both clients run."""
    queue = Queue(client, namespace, "q")
    queue.send_all(range(100))
    suspect(client, queue, "victim")

    async def work() -> list[str]:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            aqueue = AsyncQueue(aclient, namespace, "q")
            return [each.id for _ in range(SOON) for each in await aqueue.receive(5)]

    assert "victim" in asyncio.run(work())


def test_many_suspects_leave_the_others_their_turns(client: Client, namespace: str) -> None:
    """Three receives in four go to what is ready, however many suspects wait."""
    queue = Queue(client, namespace, "q")
    queue.send_all([b"new"] * 400)
    suspect(client, queue, *(f"s{number}" for number in range(100)))
    received = [message for _ in range(100) for message in queue.receive()]
    suspects = sum(each.timeouts for each in received)
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
    state = PlaceState()
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


def test_some_of_those_that_receive_once_begin_with_suspects() -> None:
    """A script that makes one receive each time it runs knows of no suspect: one run in four asks for one."""
    random.seed(1)
    first = sum(PlaceState().suspect_first(0.0) for _ in range(400))
    assert 60 <= first <= 140


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
def test_a_lone_timeout_among_100_000_newer_comes_in_time(
    client: Client, namespace: str, count: int
) -> None:
    """Within the visibility timeout, a tick of the reaper and a second, to a program that is no worker."""
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
        queue.send_all([b"new"] * 100_000)
        (lost,) = queue.receive()
        assert lost.id == lost_id
        received_at = time.monotonic()
        while True:
            messages = queue.receive(count)
            if any(each.id == lost_id for each in messages):
                break
            queue.ack(*messages)
            time.sleep(0.005)  # what a program does with them
            # Visibility, tick and a second; three more for a machine that is busy.
            assert time.monotonic() - received_at <= 1 + 0.2 + 1 + 3
        assert queue.inspect().ready > 10_000
    finally:
        stop.set()
        thread.join()
