"""A worker maintains the shards of its queues: it notices changes, and heals a queue that has forgotten them."""

from __future__ import annotations

from qworker import QWorker
from qworker.consumer.shards import ShardWatch
from qworker.wire.shards import Shards
from tests.consumer.driving import redis_of
from tests.timing import Clock


def test_a_change_is_said_once(app: QWorker) -> None:
    """And looked for every few seconds only."""
    clock = Clock()
    watch = ShardWatch(app.client, app.namespace, ["a", "b"], ["a", "b"], clock=clock)
    assert not watch.changed()
    app.queue("b").divide(3, wait=0)
    assert not watch.changed()
    clock.now_s += 5
    assert watch.changed()
    clock.now_s += 5
    assert not watch.changed()
    app.queue("b").divide(1, wait=0)
    clock.now_s += 5
    assert watch.changed()


def test_a_child_that_could_not_ask_is_found_out(app: QWorker) -> None:
    """It receives from the first shard alone, and is replaced once the server answers."""
    app.queue("a").divide(2, wait=0)
    assert ShardWatch(app.client, app.namespace, ["a"], ["a"]).changed()
    assert not ShardWatch(app.client, app.namespace, ["a"], ["a", "a/1"]).changed()


def test_a_queue_that_has_forgotten_its_shards_is_healed(app: QWorker) -> None:
    """Otherwise a worker would leave its shards because of a failover of the node of the first one."""
    clock = Clock()
    queue = app.queue("a")
    queue.divide(3, wait=0)
    names = ["a", "a/1", "a/2"]
    watch = ShardWatch(app.client, app.namespace, ["a"], names, clock=clock)
    assert not watch.changed()
    with redis_of(app) as raw:
        for forgotten in (None, "1 1 1", "2 2 1", "rubbish"):
            raw.hdel(queue.keys.meta, "shards")
            if forgotten is not None:
                raw.hset(queue.keys.meta, "shards", forgotten)
            clock.now_s += 5
            assert not watch.changed()
            stands = Shards.parse(raw.hget(queue.keys.meta, "shards"))
            assert stands is not None
            assert (stands.active, stands.kept) == (3, 3)


def test_a_queue_that_was_removed_is_not_brought_back(app: QWorker) -> None:
    """Its shards remember nothing, so the worker leaves them, and writes nothing anywhere."""
    clock = Clock()
    queue = app.queue("a")
    queue.divide(3, wait=0)
    watch = ShardWatch(app.client, app.namespace, ["a"], ["a", "a/1", "a/2"], clock=clock)
    assert not watch.changed()
    queue.remove()
    clock.now_s += 5
    assert watch.changed()
    with redis_of(app) as raw:
        assert not list(raw.scan_iter(f"{app.namespace}:*"))


def test_what_stands_in_the_index_moves_no_worker(app: QWorker) -> None:
    """Neither a bogus division there, nor another type."""
    clock = Clock()
    app.queue("a").divide(2, wait=0)
    watch = ShardWatch(app.client, app.namespace, ["a"], ["a", "a/1"], clock=clock)
    with redis_of(app) as raw:
        index = f"{app.namespace}:queues"
        for write in (
            lambda: raw.hset(index, "a", "1 1 999999999999999"),
            lambda: raw.delete(index),
            lambda: raw.set(index, "x"),
        ):
            write()
            clock.now_s += 5
            assert not watch.changed()
