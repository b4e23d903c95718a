"""Many coroutines that wait on one event loop: other calls do not wait for them, and each hears its own bell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from qworker.client.execute.aio import MAX_CONNECTIONS, MAX_SETTLING, AsyncClient
from qworker.client.execute.shared_waits import MAX_WAITS
from qworker.client.queue import AsyncQueue
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from tests.timing import DEADLINE_S, Watch, keep_within
from tests.topologies.servers import CLUSTERED

WAITERS = 320
T = TypeVar("T")


def run(url: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with AsyncClient(ConnectionFactory(url), give_up_s=20.0) as client:
            return await work(client)

    return asyncio.run(main())


async def waiting(
    client: AsyncClient, namespace: str, names: list[str]
) -> list[asyncio.Task[object]]:
    """Receive from empty queues, and return once they wait."""
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(AsyncQueue(client, namespace, name).receive(wait="60s"))
        for name in names
    ]
    blocked = 0
    while not blocked:
        await asyncio.sleep(0.05)
        for node in await client.factory.amasters():
            clients = await client.execute(raw("INFO", "clients", node=node, decode=bytes.decode))
            blocked += int(clients.partition("blocked_clients:")[2].split()[0])
    return tasks


async def end(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
def test_an_ack_does_not_wait_for_waiting_receives(store_url: str, namespace: str) -> None:
    """With ten times as many waiting receives as there are connections an ack takes a round trip, not 18 seconds."""

    async def work(client: AsyncClient) -> float:
        queue = AsyncQueue(client, namespace, "work")
        await queue.send("job")
        (message,) = await queue.receive()
        tasks = await waiting(client, namespace, [f"empty{n}" for n in range(WAITERS)])
        watch = Watch(os.getpid())
        assert await queue.ack(message) == [message]
        passed_s = watch.passed_s()
        await end(tasks)
        return passed_s

    # A round trip is under a millisecond; a single wait at a doorbell is two seconds.
    keep_within(1, lambda: run(store_url, work))


def test_settles_do_not_wait_for_other_calls(store_url: str, namespace: str) -> None:
    """Every connection for calls is taken, and an ack succeeds anyway."""

    async def work(client: AsyncClient) -> None:
        queue = AsyncQueue(client, namespace, "work")
        await queue.send("job")
        (message,) = await queue.receive()
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(MAX_CONNECTIONS):
                await client._calls.of(None, DEADLINE_S).__aenter__()
            assert await queue.ack(message) == [message]

    run(store_url, work)


@pytest.mark.slow
def test_a_client_opens_a_bounded_number_of_connections(store_url: str, namespace: str) -> None:
    """However many coroutines receive, wait and settle."""

    async def work(client: AsyncClient) -> None:
        tasks = await waiting(client, namespace, [f"empty{n}" for n in range(WAITERS)])
        await asyncio.sleep(0.3)
        listed = await client.execute(raw("CLIENT", "LIST", decode=bytes.decode))
        ours = [line for line in listed.splitlines() if f"name={namespace}" in line]
        assert 0 < len(ours) <= MAX_CONNECTIONS + MAX_SETTLING + MAX_WAITS + 1
        await end(tasks)

    async def main() -> None:
        async with AsyncClient(ConnectionFactory(store_url, name=namespace)) as client:
            await work(client)

    asyncio.run(main())


@pytest.mark.slow
def test_every_waiter_hears_its_own_bell(store_url: str, namespace: str) -> None:
    """Waiters that share a connection get their messages as soon as those with one of their own."""

    async def work(client: AsyncClient) -> float:
        names = [f"q{n}" for n in range(3 * MAX_WAITS)]
        tasks = await waiting(client, namespace, names)
        await asyncio.sleep(0.1)
        watch = Watch(os.getpid())
        for name in reversed(names):
            await AsyncQueue(client, namespace, name).send(name)
        received = await asyncio.gather(*tasks)
        assert [messages[0].queue for messages in received] == names  # type: ignore[index]
        return 0 if CLUSTERED else watch.passed_s()

    # Without a bell a waiter receives every two seconds.
    keep_within(1.5, lambda: run(store_url, work))


def test_waiters_of_one_queue_are_all_served(store_url: str, namespace: str) -> None:
    """Each message rings for one of them."""

    async def work(client: AsyncClient) -> None:
        tasks = await waiting(client, namespace, ["q"] * (2 * MAX_WAITS))
        await AsyncQueue(client, namespace, "q").send_many(range(len(tasks)))
        received = await asyncio.gather(*tasks)
        assert {messages[0].body for messages in received} == {  # type: ignore[index]
            b"%d" % number for number in range(len(tasks))
        }

    run(store_url, work)


@pytest.mark.skipif(CLUSTERED, reason="bells of two slots are not waited for together")
def test_the_token_of_a_cancelled_waiter_is_given_back(store_url: str, namespace: str) -> None:
    """A bell that rang in the shared wait for a cancelled coroutine rings for another consumer."""

    async def work(client: AsyncClient) -> None:
        tasks = await waiting(client, namespace, [f"empty{n}" for n in range(MAX_WAITS)])
        queue = AsyncQueue(client, namespace, "late")
        late = asyncio.create_task(queue.receive(wait="60s"))
        # The shared wait is for its bell from the next turn on.
        await asyncio.sleep(0.25)
        # In its own loop the client cannot hear the bell before the waiter has gone.
        rung = client.execute(raw("RPUSH", queue.keys.wake, "1", decode=int))
        late.cancel()
        await rung
        for _ in range(50):
            await asyncio.sleep(0.05)
            words = ("LLEN", queue.keys.wake)
            if await client.execute(raw(*words, decode=int)) == 1:
                break
        else:
            raise AssertionError("the token is gone")
        await end(tasks)

    run(store_url, work)
