"""Shards on several masters: workers follow a change of their number, and nothing is lost on the way."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.store.connections import ConnectionFactory
from tests.consumer.driving import DEADLINE_S, running, until
from tests.consumer.workers import Lab
from tests.topologies.servers import Cluster, client_of

SOURCE = """
@app.task(queue="orders")
def work(n: int) -> None:
    note("done", n)
"""


@pytest.fixture
def lab(nodes: Cluster, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A place for workers in their own processes, with a task on the queue that is divided."""
    lab = Lab(nodes.url, namespace, tmp_path)
    lab.app(SOURCE)
    yield lab
    lab.close()


@contextmanager
def sending(lab: Lab, threads: int = 2) -> Iterator[list[int]]:
    """Send numbers one by one from threads until the block ends; yields those that are stored."""
    stored: list[int] = []
    ended = threading.Event()
    errors: list[BaseException] = []

    def send(first: int) -> None:
        queue, n = lab.queue("orders"), first
        try:
            while not ended.is_set():
                queue.send({"task": "work", "args": [n]})
                stored.append(n)
                n += threads
                time.sleep(0.02)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=send, args=(n,)) for n in range(threads)]
    for worker in running:
        worker.start()
    try:
        yield stored
    finally:
        ended.set()
        for worker in running:
            worker.join(DEADLINE_S)
    assert not errors, errors


def test_the_number_changes_under_load_and_nothing_is_lost(
    lab: Lab, nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, five, two shards, while two threads send and two workers receive: each message is handled, and once."""
    monkeypatch.setattr("qworker.client.queue_ref.REFRESH_S", 1.0)
    other = Queue(lab.sender.client, lab.namespace, "orders")
    with lab.reaper(), lab.worker(), lab.worker():
        with sending(lab) as stored:
            until(lambda: len(lab.noted("done")) > 50)
            grown = other.divide(5)
            masters = {nodes.master_of(other.ref.shard_of(n).keys.meta) for n in range(5)}
            assert grown.active == 5
            assert len(masters) > 1
            # Only workers that receive from the new shards can have taken these.
            until(
                lambda: all(shard.stats.get("acked", 0) > 20 for shard in other.division().shards)
            )
            other.divide(2)
            until(lambda: len(other.division().shards) == 2)
            seen = len(stored)
            until(lambda: len(stored) > seen + 50)
        until(lambda: len(lab.noted("done")) >= len(stored))
    handled = Counter(n for (n,) in lab.noted("done"))
    assert sorted(handled) == sorted(stored)
    assert set(handled.values()) == {1}
    seen_all = [Queue(lab.sender.client, lab.namespace, f"orders/{n}").inspect() for n in range(5)]
    # The first shard counts on from the totals of those that were given up.
    assert sum(inspection.stats.get("sent", 0) for inspection in seen_all) == len(stored)
    assert sum(inspection.stored for inspection in seen_all) == 0


def test_workers_receive_from_new_shards_before_anything_is_sent_there(lab: Lab) -> None:
    """`divide` comes back when the worker says that it does, long before its time is up."""
    queue = lab.queue("orders")
    with lab.worker("--procs", "2") as worker:
        queue.send({"task": "work", "args": [0]})
        until(lambda: lab.noted("done") == [[0]])
        until(lambda: queue.stat().consumers == 2)
        began = time.monotonic()
        queue.divide(3, wait="10m")
        assert time.monotonic() - began < DEADLINE_S
        assert worker.events("shards_changed")
        for n in (1, 2):
            Queue(lab.sender.client, lab.namespace, f"orders/{n}").send(
                {"task": "work", "args": [n]}
            )
        until(lambda: sorted(lab.noted("done")) == [[0], [1], [2]])


def test_a_draining_shard_is_kept_until_its_last_message_is_gone(
    nodes: Cluster, namespace: str
) -> None:
    """Delayed, unacked, dead: what is anywhere in it keeps it, and a reaper gives it up after that."""
    app = QWorker(namespace, url=nodes.url)
    queue = app.queue("orders")
    queue.divide(2, wait=0)
    shard = Queue(app.client, namespace, "orders/1")
    shard.send({"n": 1}, delay="1h")
    shard.send({"n": 2})
    with Client(ConnectionFactory(nodes.url)) as client:

        def kept() -> int:
            reaper = Reaper(client, namespace)
            reaper.tick()
            reaper.close()
            return len(queue.division().shards)

        queue.divide(1, wait=0)
        assert kept() == 2
        (got,) = queue.receive(10)
        assert got.receipt.shard == 1
        assert kept() == 2
        queue.bury(got)
        (waits,) = queue.scan("delayed")
        assert queue.enqueue(waits.id) == [waits.id]
        queue.ack(*queue.receive(10))
        assert kept() == 2
        assert len(queue.redrive(everything=True)) == 1
        queue.ack(*queue.receive(10))
        assert kept() == 1
        # Divided again, it is used again.
        queue.divide(2, wait=0)
        shard.send({"n": 3})
        assert [message.json() for message in queue.receive(10)] == [{"n": 3}]
    app.close()


def test_a_division_that_was_lost_is_taken_back(nodes: Cluster, namespace: str) -> None:
    """By any client that remembers it, from the marks of the shards; and by a reaper, from the keys that it finds."""
    app = QWorker(namespace, url=nodes.url)
    queue = app.queue("orders")
    queue.divide(3, wait=0)
    for n in range(3):
        Queue(app.client, namespace, f"orders/{n}").send({"n": n})
    meta = queue.keys.meta
    with client_of(nodes.url) as raw:
        raw.hdel(meta, "shards")
        queue.ref.doubt()
        queue.send({"n": 3})
        assert len(Queue(app.client, namespace, "orders").receive(10)) == 4
        raw.hdel(meta, "shards")
    with Client(ConnectionFactory(nodes.url)) as client:
        reaper = Reaper(client, namespace)

        def is_found() -> bool:
            # A new watch every time: the next one is due in ten seconds.
            reaper._shards._check_at = float("-inf")
            reaper.tick()
            return len(Queue(app.client, namespace, "orders").division().shards) == 3

        until(is_found)
        reaper.close()
    app.close()


def test_a_broker_takes_turns_among_shards(nodes: Cluster, namespace: str) -> None:
    """With all shards full none waits for another to run empty."""
    app, order = QWorker(namespace, url=nodes.url), list[int]()
    app.task(name="work", queue="orders")(order.append)
    queue = app.queue("orders")
    queue.divide(3, wait=0)
    for shard in range(3):
        Queue(app.client, namespace, f"orders/{shard}").send_many(
            [{"task": "work", "args": [shard]}] * 300
        )
    with running(app, max_batch=50):
        until(lambda: len(order) == 900)
    assert {*order[:200]} == {0, 1, 2}
    app.close()


def test_a_master_with_some_shards_is_lost(lab: Lab, nodes: Cluster) -> None:
    """What goes to the others continues meanwhile; what was confirmed by a replica is handled when it takes over."""
    queue = lab.queue("orders")
    queue.divide(6, wait=0)
    lost = nodes.master_of(queue.ref.shard_of(0).keys.meta)
    with lab.reaper(), lab.worker():
        for n in range(60):
            queue.send({"task": "work", "args": [n]}, replicas=1, within="2s")
        until(lambda: len({n for (n,) in lab.noted("done")}) == 60)
        lost.kill()
        for n in range(60, 120):
            queue.send({"task": "work", "args": [n]})
        until(lambda: len({n for (n,) in lab.noted("done")}) == 120)
    lost.start()
    nodes.wait_until_whole()
