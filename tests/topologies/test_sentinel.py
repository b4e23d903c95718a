"""Behind Sentinels: masters that are lost or demoted, and what is told their successors."""

from __future__ import annotations

import pytest

from qworker import QWorker
from qworker.errors import UnavailableError
from qworker.store.connections import ConnectionFactory
from tests.consumer.driving import running, until
from tests.topologies.servers import Trio


def test_a_lost_master_is_replaced(trio: Trio, namespace: str) -> None:
    """Senders, workers and their leases continue with the new master; what the replicas had confirmed is there."""
    app, seen = QWorker(namespace, url=trio.url), list[int]()
    app.task(name="work", queue="q")(lambda n: seen.append(n))
    queue, lost = app.queue("q"), trio.master()
    with running(app):
        queue.send({"task": "work", "args": [0]})
        until(lambda: seen == [0])
        queue.send({"task": "work", "args": [1]}, delay="1h", replicas=2, within="2s")
        lost.kill()
        queue.send({"task": "work", "args": [2]})
        until(lambda: 2 in seen)
        assert queue.inspect().delayed == 1
    lost.start()
    trio.wait_until_whole()
    app.close()


def test_settles_are_repeated_after_a_failover(trio: Trio, namespace: str) -> None:
    """An ack that the replicas had not heard of is told the new master: the message does not come back."""
    app = QWorker(namespace, url=trio.url)
    queue, lost = app.queue("q"), trio.master()
    for _ in range(2):
        queue.send({}, replicas=2, within="2s")
    acked, kept = queue.receive(2, visibility="1h")
    queue.replicated(2, within="2s")
    for replica in trio.replicas():
        # To nowhere: from now on it hears nothing, until a Sentinel repairs it.
        replica.ask("REPLICAOF", "127.0.0.1", 1)
    queue.ack(acked)
    lost.kill()
    trio.wait_for_master(other_than=lost)
    assert queue.inspect().unacked == 1
    queue.ack(kept)
    assert queue.inspect().stored == 0
    lost.start()
    trio.wait_until_whole()
    app.close()


def test_a_demoted_master_is_left(trio: Trio, namespace: str) -> None:
    """A planned failover closes no connection by itself: READONLY makes clients ask who the master is."""
    app = QWorker(namespace, url=trio.url)
    queue = app.queue("q")
    queue.send({"n": 1}, replicas=2, within="2s")
    trio.hand_over()
    queue.send({"n": 2})
    assert queue.inspect().ready == 2
    trio.wait_until_whole()
    app.close()


def test_a_frozen_master_is_left(trio: Trio, namespace: str) -> None:
    """A worker whose master stops in the middle of its wait goes to the next one by itself."""
    app, seen = QWorker(namespace, url=trio.url), list[int]()
    app.task(name="work", queue="q")(lambda n: seen.append(n))
    queue, frozen = app.queue("q"), trio.master()
    with running(app) as child:
        queue.send({"task": "work", "args": [0]})
        until(lambda: seen == [0] and child.waiting)
        frozen.pause()
        try:
            trio.wait_for_master(other_than=frozen)
            queue.send({"task": "work", "args": [1]})
            until(lambda: 1 in seen)
        finally:
            frozen.resume()
    trio.wait_until_whole()
    app.close()


def test_one_sentinel_is_enough(trio: Trio) -> None:
    """A Sentinel that is away, or frozen, costs a second at most; without any the error says what is missing."""
    first, *others = (node.address for node in trio.sentinels)
    trio.sentinels[0].pause()
    try:
        url = f"redis+sentinel://127.0.0.1:1,{first},{others[0]}/main"
        ConnectionFactory(url).connect().disconnect()
        with pytest.raises(UnavailableError, match="no Sentinel names the master"):
            ConnectionFactory(f"redis+sentinel://127.0.0.1:1,{first}/main").connect()
    finally:
        trio.sentinels[0].resume()
    trio.wait_until_whole()
