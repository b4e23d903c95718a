"""The index of queues is a list for tools: where its node is away or frozen, queues on other nodes continue at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.daemon.queue_metrics import OTHER, QueueCollector
from qworker.daemon.reaper import Reaper
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys, queues_key
from tests.timing import Clock, Watch
from tests.topologies.servers import Cluster, Node, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: One wait for the lost node takes half a second, and a reply timeout 4 s. The rest is for a slow machine.
PAUSE_S = 3.5
#: A frozen node is waited for once, 1.5 s; once per trip it would be 9 s.
LONGEST_SCRAPE_S = 7.5


@pytest.fixture(params=["killed", "frozen"])
def away(request: pytest.FixtureRequest, nodes: Cluster, namespace: str) -> Iterator[Any]:
    """What takes the node of the index away; afterwards it is there again."""
    lost: list[Node] = []

    def take_away() -> Node:
        node = nodes.master_of(queues_key(namespace))
        lost.append(node)
        node.kill() if request.param == "killed" else node.pause()
        return node

    yield take_away
    for node in lost:
        node.start() if request.param == "killed" else node.resume()
    nodes.wait_until_whole()


def elsewhere(nodes: Cluster, namespace: str, number: int = 1) -> list[str]:
    """Queues that live on other nodes than the index."""
    index = nodes.master_of(queues_key(namespace))
    names = (f"q{n}" for n in range(999))
    return [
        name
        for _, name in zip(
            range(number),
            (
                name
                for name in names
                if nodes.master_of(QueueKeys(namespace, name).meta) is not index
            ),
            strict=False,
        )
    ]


@pytest.mark.parametrize(
    "away",
    [
        "killed",
        pytest.param(
            "frozen", marks=pytest.mark.nightly("test_queues_on_other_nodes_work_without_it")
        ),
    ],
    indirect=True,
)
def test_queues_on_other_nodes_work_without_it(nodes: Cluster, namespace: str, away: Any) -> None:
    """New queues and known ones, with clients that were there before and with new ones, a minute later as well."""
    known, *new = elsewhere(nodes, namespace, 4)
    factory = ConnectionFactory(nodes.url)
    with Client(factory) as client, Client(ConnectionFactory(nodes.url)) as second:
        queue = Queue(client, namespace, known)
        queue.send({"n": 0})
        second.run(Queue(second, namespace, known).ref.every_shard(refresh=True))
        away()
        for each in (client, second):
            for name in (known, *new):
                place = Queue(each, namespace, name)
                slowest = 0.0
                for minute in range(3):
                    if minute:
                        place.ref.doubt()
                        place.ref._announced = float("-inf")
                    for call in (
                        lambda place=place: place.send({"n": 1}),
                        lambda place=place: place.ack(*place.receive(10)),
                        lambda place=place: place.inspect(),
                    ):
                        watch = Watch(os.getpid())
                        call()
                        slowest = max(slowest, watch.passed_s())
                assert slowest < PAUSE_S, (name, slowest)


@pytest.mark.parametrize(
    "away",
    [
        "frozen",
        pytest.param("killed", marks=pytest.mark.nightly("test_async_queues_work_without_it")),
    ],
    indirect=True,
)
def test_async_queues_work_without_it(nodes: Cluster, namespace: str, away: Any) -> None:
    """Many tasks at once wait for one failed try together, not for one each."""
    names = elsewhere(nodes, namespace, 20)

    async def use() -> float:
        async with AsyncClient(ConnectionFactory(nodes.url)) as client:
            await AsyncQueue(client, namespace, names[0]).send({"n": 0})
            away()
            watch = Watch(os.getpid())

            async def one(name: str) -> None:
                queue = AsyncQueue(client, namespace, name)
                await queue.send({"n": 1})
                assert await queue.ack(*await queue.receive(10))

            await asyncio.gather(*map(one, names))
            return watch.passed_s()

    assert asyncio.run(use()) < PAUSE_S


def test_a_reaper_finds_queues_that_no_sender_could_register(
    nodes: Cluster, namespace: str, away: Any
) -> None:
    """A queue of delayed messages, sent first while the index was away, is reaped within seconds."""
    (name,) = elsewhere(nodes, namespace)
    with Client(ConnectionFactory(nodes.url)) as client:
        away()
        queue = Queue(client, namespace, name)
        queue.send({"n": 1}, delay="10ms")
        with Client(ConnectionFactory(nodes.url)) as own:
            reaper = Reaper(own, namespace)

            def promoted() -> bool:
                reaper.tick()
                return queue.inspect().ready == 1

            until(promoted)


@pytest.mark.parametrize(
    "away",
    [
        "killed",
        pytest.param(
            "frozen", marks=pytest.mark.nightly("test_figures_of_queues_on_other_nodes_are_there")
        ),
    ],
    indirect=True,
)
def test_figures_of_queues_on_other_nodes_are_there(
    nodes: Cluster, namespace: str, away: Any
) -> None:
    """Half a scrape is better than none; the node that is away is waited for once, however many queues it has."""
    names = [f"q{n:03}" for n in range(300)]
    with (
        Client(ConnectionFactory(nodes.url)) as client,
        Client(ConnectionFactory(nodes.url)) as own,
    ):
        for name in names:
            Queue(client, namespace, name).send({"n": 0})
        places = [QueueKeys(namespace, name) for name in names]
        clock = Clock()
        collector = QueueCollector(own, lambda: places, max_queues=100, clock=clock)
        before = sent_of(collector)
        owners = {name: nodes.master_of(QueueKeys(namespace, name).meta) for name in names[:100]}
        lost = away()
        clock.now_s += 60
        watch = Watch(os.getpid())
        sent = sent_of(collector)
        assert watch.passed_s() < LONGEST_SCRAPE_S
        # And maybe those of the node, if its replica was promoted meanwhile.
        assert sent.keys() >= {name for name in owners if owners[name] is not lost}
        # A sum does not fall: for Prometheus that would be a counter that restarted.
        assert sent[OTHER] == before[OTHER] == 200


def sent_of(collector: QueueCollector) -> dict[str, float]:
    """Messages sent, by label."""
    return {
        sample.labels["queue"]: sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if sample.name == "qworker_sent_total"
    }


def test_a_shard_on_a_node_that_is_away_is_left_out(nodes: Cluster, namespace: str) -> None:
    """What certainly was not sent goes to another shard at once."""
    with Client(ConnectionFactory(nodes.url)) as client:
        queue = Queue(client, namespace, "orders")
        queue.divide(6, wait=0)
    first = nodes.master_of(queue.keys.meta)
    owners = [nodes.master_of(queue.ref.shard_of(n).keys.meta) for n in range(6)]
    lost = next(owner for owner in owners if owner is not first)
    with Client(ConnectionFactory(nodes.url)) as client:
        # Without a connection to the node that goes: what is sent over one is in doubt, and repeated there.
        queue = Queue(client, namespace, "orders")
        client.run(queue.ref.look_up())
        lost.kill()
        try:
            watch = Watch(os.getpid())
            stored = [queue.send({"n": n}) for n in range(60)]
            assert watch.passed_s() < 2 * PAUSE_S
            assert len(set(stored)) == 60
        finally:
            lost.start()
            nodes.wait_until_whole()
