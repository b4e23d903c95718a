"""Remove a queue: all of it is deleted, whatever happens meanwhile, and nothing brings it back."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QueueAttributes, QWorker
from qworker.client.manage.remove import remove
from qworker.client.namespace.queues import list_queues
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.engine.command import Brief
from tests.consumer.driving import redis_of
from tests.timing import Clock


@pytest.fixture
def app(store_url: str, namespace: str) -> Any:
    """An app of nothing but queues."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


def keys_of(app: QWorker) -> list[str]:
    """All keys of the namespace except those of reapers."""
    with redis_of(app) as raw:
        scan = raw.scan_iter(f"{app.namespace}:*", count=1_000_000)
        return sorted(key.decode() for key in scan if not key.endswith(b":reapers"))


def test_given_up_shards_are_removed_with_their_queue(app: QWorker) -> None:
    """Their marks, lanes and journals as well; no reaper finds the queue again, by the index or by a scan."""
    queue = app.queue("q")
    queue.configure(QueueAttributes(journal="all"))
    queue.divide(4, wait=0)
    for n in range(12):
        queue.send({"n": n})
    queue.ack(*queue.receive(100))
    assert len(queue.divide(1, wait=0).shards) == 1
    reapers = [Reaper(app.client, app.namespace) for _ in range(2)]
    reapers[0].tick()
    queue.send({"n": 12})
    Queue(app.client, app.namespace, "q").remove()
    assert keys_of(app) == []
    for reaper in reapers:
        reaper.tick()
        assert reaper.registry.queues == ()
    assert app.client.run(list_queues(app.namespace)) == []
    assert keys_of(app) == []


def test_a_removed_queue_leaves_the_index_of_a_reaper_that_was_reading(app: QWorker) -> None:
    """A scan that read a key just before its removal writes an entry at worst, which is removed again."""
    queue = app.queue("q")
    queue.send({"n": 1})
    clock = Clock()
    reaper = Reaper(app.client, app.namespace, clock=clock)
    reaper.tick()
    queue.remove()
    with redis_of(app) as raw:
        raw.hset(f"{app.namespace}:queues", "q", 1)
    for _ in range(3):
        clock.now_s += 10
        reaper.tick()
    assert reaper.registry.queues == ()
    assert keys_of(app) == []


@pytest.mark.slow
def test_a_receive_during_a_removal_leaves_nothing_behind(app: QWorker) -> None:
    """Between any two steps of a removal: no lease is left without a deadline, and a late ack moves no counter."""
    for stop in range(30):
        queue = app.queue(f"q{stop}")
        queue.send_many([{"n": n} for n in range(10)])
        early = queue.receive(2)
        plan, got, at, result = remove(queue.ref), [], 0, None
        try:
            step = plan.send(None)
            while True:
                if at == stop:
                    got = Queue(app.client, app.namespace, queue.name).receive(5)
                at += 1
                run = app.client.briefly if isinstance(step, Brief) else app.client.execute
                step = plan.send(run(step))
        except StopIteration as end:
            result = end.value
        assert result is None
        if at <= stop:
            break
        assert keys_of(app) == [], stop
        queue.send_many([{"n": n} for n in range(3)])
        assert queue.ack(*early, *got) == []
        seen = queue.inspect()
        assert (seen.stats["stored"], seen.ready, seen.unacked) == (3, 3, 0)
        assert len(queue.ack(*queue.receive(10))) == 3
        assert queue.inspect().stats["stored"] == 0
        queue.remove()
    else:
        pytest.fail("a removal has more steps than are tried")


@pytest.mark.slow
def test_sends_during_the_removal_of_a_divided_queue_are_deleted_or_can_be_received(
    app: QWorker, store_url: str
) -> None:
    """Between any two steps, by a client that knows the shards: none is opened again behind the removal."""
    reached = False
    for stop in range(0, 60, 3):
        queue = app.queue(f"q{stop}")
        queue.divide(3, wait=0)
        with QWorker(app.namespace, url=store_url).client as client:
            sender = Queue(client, app.namespace, queue.name)
            sender.send_many([{"n": n} for n in range(24)])
            plan, at = remove(queue.ref), 0
            try:
                step = plan.send(None)
                while True:
                    if at == stop:
                        reached = True
                        for n in range(8):
                            sender.send({"n": n})
                    at += 1
                    run = app.client.briefly if isinstance(step, Brief) else app.client.execute
                    step = plan.send(run(step))
            except StopIteration:
                pass
        fresh = Queue(app.client, app.namespace, queue.name)
        fresh.ack(*fresh.receive(100))
        left = [key for key in keys_of(app) if key.endswith(":ready")]
        assert left == [], stop
        fresh.remove()
        if at <= stop:
            break
    else:
        pytest.fail("a removal has more steps than are tried")
    assert reached


def test_keys_of_another_type_are_removed_as_well(app: QWorker) -> None:
    """A broken queue can be removed, whichever key is broken."""
    queue = app.queue("q")
    for key in (queue.keys.meta, queue.keys.unacked, queue.keys.ready[0], queue.keys.schedules):
        queue.send({"n": 1})
        with redis_of(app) as raw:
            raw.delete(key)
            raw.set(key, "x")
        queue.remove()
        assert keys_of(app) == []


def test_leases_with_strange_names_do_not_stop_a_removal(app: QWorker) -> None:
    """Whatever is stored among the deadlines."""
    queue = app.queue("q")
    queue.send({"n": 1})
    with redis_of(app) as raw:
        raw.zadd(
            queue.keys.unacked, {b"\xff\x00": 1, "a b": 2, **{f"l{n}": n for n in range(1200)}}
        )
    queue.remove()
    assert keys_of(app) == []


def test_one_shard_can_be_removed_alone(app: QWorker) -> None:
    """The others stay; a send opens it again."""
    queue = app.queue("q")
    queue.divide(3, wait=0)
    for n in range(6):
        queue.send({"n": n})
    Queue(app.client, app.namespace, "q/1").remove()
    assert queue.inspect().ready == 4
    for n in range(6):
        queue.send({"n": n})
    assert queue.inspect().ready == 10
