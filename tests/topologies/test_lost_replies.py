"""A node of a Cluster runs a receive whose caller has given it up: its messages are back long before their time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qworker import QWorker
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.consumer.child.leases.board_slots import PendingLease
from qworker.consumer.child.receive.receiver import Receiver
from qworker.errors import InDoubtError, QworkerError
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from qworker.wire.names import shard_name
from tests.consumer.driving import running, until
from tests.consumer.workers import Lab
from tests.timing import Watch
from tests.topologies.servers import Cluster, Node

#: Of a worker's reaper.
TICK_S = 1.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def kept_master(nodes: Cluster, keys: QueueKeys) -> Iterator[Node]:
    """The master of a queue, whose replica does not take over."""
    node = nodes.master_of(keys.meta)
    replica = nodes.replica_of(node)
    replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes")
    try:
        yield node
    finally:
        node.resume()
        replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "no")
        nodes.wait_until_whole()


@pytest.mark.parametrize(("queues", "shards"), [(12, 1), (30, 1), (2, 3)])
def test_a_worker_gives_back_what_a_receive_without_reply_has_taken(
    nodes: Cluster,
    namespace: str,
    queues: int,
    shards: int,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Uncounted, long before its visibility, also if the queue is empty but for that and never rings again.

    With 12 queues the worker waits at their doorbells, with 30 it polls them.
    """
    app, handled = QWorker(namespace, url=nodes.url), list[str]()
    request.addfinalizer(app.close)
    for name in (f"q{number}" for number in range(queues)):
        app.task(name=name, queue=name)(lambda name=name: handled.append(name))
    if shards > 1:
        app.queue("q0").divide(shards, wait=0)
    first = QueueKeys(namespace, shard_name("q0", shards - 1))
    enter, note_error = Receiver.enter, Receiver.note_error
    frozen, lost = list[str](), list[str]()
    with kept_master(nodes, first) as node:

        def freeze_before(self: Receiver, queue: QueueState) -> PendingLease:
            """The receive reaches the socket of a server that stands still."""
            if queue.shard == first.queue and not frozen:
                frozen.append(queue.shard)
                node.pause()
            return enter(self, queue)

        def thaw_after(self: Receiver, queue: QueueState, error: QworkerError) -> None:
            note_error(self, queue, error)
            if queue.shard == first.queue and not lost:
                lost.append(type(error).__name__)
                node.resume()

        monkeypatch.setattr(Receiver, "enter", freeze_before)
        monkeypatch.setattr(Receiver, "note_error", thaw_after)
        with running(app, visibility_ms=600_000) as child:
            until(lambda: child.waiting or queues == 30)
            node.redis().lpush(first.ready[0], '{"task": "q0", "args": []}')
            node.redis().rpush(first.wake, 1)
            until(lambda: handled == ["q0"], what="the message whose receive was given up")
    assert (frozen, lost) == ([first.queue], ["InDoubtError"])
    stats = {name: int(number) for name, number in node.redis().hgetall(first.stats).items()}
    assert (stats[b"released"], stats.get(b"timeouts", 0)) == (1, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_gives_back_what_a_receive_without_reply_has_taken(
    nodes: Cluster, namespace: str, is_async: bool
) -> None:
    """With its next receive, and receives it in the same call."""
    keys = QueueKeys(namespace, "q")

    async def receive_asynchronously() -> list[int]:
        async with AsyncClient(ConnectionFactory(nodes.url), give_up_s=1.0) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send({"n": 1})
            node.pause()
            with pytest.raises(InDoubtError):
                await queue.receive(visibility="10m")
            node.resume()
            until(lambda: node.redis().zcard(keys.unacked) == 1, what="the receive to run")
            return [message.receive_count for message in await queue.receive()]

    def receive() -> list[int]:
        with Client(ConnectionFactory(nodes.url), give_up_s=1.0) as client:
            queue = Queue(client, namespace, "q")
            queue.send({"n": 1})
            node.pause()
            with pytest.raises(InDoubtError):
                queue.receive(visibility="10m")
            node.resume()
            until(lambda: node.redis().zcard(keys.unacked) == 1, what="the receive to run")
            return [message.receive_count for message in queue.receive()]

    with kept_master(nodes, keys) as node:
        received = asyncio.run(receive_asynchronously()) if is_async else receive()
    assert received == [1]


@pytest.mark.parametrize(
    "frozen_s",
    [
        pytest.param(
            0.0,
            marks=pytest.mark.nightly(
                "test_a_worker_alone_takes_back_a_lease_that_no_process_holds"
            ),
        ),
        3.0,
    ],
)
def test_a_worker_alone_takes_back_a_lease_that_no_process_holds(
    nodes: Cluster, namespace: str, tmp_path: Path, frozen_s: float
) -> None:
    """Within a tick and a second of its deadline, from a queue that is empty but for that; its reaper does it.

    A node that stood still before the deadline makes no difference: the grace after that is over by then.
    """
    keys, lab = QueueKeys(namespace, "q"), Lab(nodes.url, namespace, tmp_path)
    lab.app("""
@app.task(queue="q")
def task(number: int) -> None:
    note("start", number)
""")
    with closing(lab), kept_master(nodes, keys) as node:
        lab.send("task", 1, queue="q")
        (lost,) = lab.queue("q").receive(visibility="20s")
        with lab.worker() as worker:
            until(lambda: worker.events("worker_ready"))
            if frozen_s:
                node.pause()
                time.sleep(frozen_s)
                node.resume()
            until(lambda: _now_ms(node) >= lost.deadline_ms, what="the deadline")
            watch = Watch(worker.process.pid, *worker.children(), *(n.pid for n in nodes.nodes))
            until(lambda: lab.notes("start"))
            assert watch.passed_s() < TICK_S + 1.0


def _now_ms(node: Node) -> int:
    seconds, microseconds = node.redis().time()
    return int(seconds * 1000 + microseconds // 1000)
