"""What operators do to queues with groups: pause them, divide them and back, remove them while slots are held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from qworker import QWorker
from qworker.client.manage.limits import groups
from qworker.client.manage.pauses import change_pauses
from qworker.client.queue import Queue
from qworker.errors import QueuePausedError
from qworker.fsck.check import check
from tests.consumer.driving import redis_of


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app of nothing but queues."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


def bodies(messages: Any) -> list[Any]:
    """What was received, in order."""
    return [msgspec.json.decode(message.body) for message in messages]


def is_sound(app: QWorker) -> bool:
    """Whether fsck finds nothing."""
    return list(check(app.client, app.namespace)) == []


def test_a_paused_queue_delivers_nothing_of_its_groups(app: QWorker) -> None:
    """Slots of what runs are freed meanwhile, limits may be changed, and turns go on where they were."""
    queue = app.queue("q")
    queue.set_limit("*", concurrency=1)
    for name in "ab":
        queue.send_many([f"{name}0", f"{name}1"], group=name)
    queue.send_many(["o0", "o1"], group="o", ordered=True)
    first = queue.receive(10)
    assert sorted(bodies(first)) == ["a0", "b0", "o0"]
    app.client.run(change_pauses(queue.ref, close={"out"}))
    assert queue.receive(10) == []
    queue.ack(*first)
    queue.set_limit("a", concurrency=2)
    queue.send("a2", group="a")
    assert queue.receive(10) == []
    assert {group.name: group.running for group in queue.groups()} == {"a": 0, "b": 0, "=o": 0}
    app.client.run(change_pauses(queue.ref, reopen={"out"}))
    assert sorted(bodies(queue.receive(10))) == ["a1", "a2", "b1", "o1"]
    assert is_sound(app)


def test_a_queue_whose_input_is_paused_takes_nothing_of_groups(app: QWorker) -> None:
    """What it has is delivered, and a slot is freed as ever."""
    queue = app.queue("q")
    queue.send_many(["o0", "o1"], group="o", ordered=True)
    app.client.run(change_pauses(queue.ref, close={"in"}))
    with pytest.raises(QueuePausedError):
        queue.send("o2", group="o", ordered=True)
    (first,) = queue.receive(10)
    queue.nack(first)
    (again,) = queue.receive(10)
    assert bodies([again]) == ["o0"]
    queue.ack(again)
    assert bodies(queue.receive(10)) == ["o1"]
    assert is_sound(app)


def test_groups_wait_in_each_shard_over_a_division_and_back(app: QWorker) -> None:
    """Every message is delivered once, in its order in a shard; limits are in all shards, no slot is left."""
    queue = app.queue("q")
    queue.set_limit("*", concurrency=2)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        queue.send_many([f"{name}.0", f"{name}.1"], group=name)
    held = queue.receive(4)
    queue.divide(3, wait=0)
    for name in names:
        queue.send_many([f"{name}.2", f"{name}.3"], group=name)
    shards = [Queue(queue.client, queue.ref.namespace, f"q/{number}") for number in (1, 2)]
    assert all(shard.inspect().grouped for shard in shards)
    assert all(shard.limits() == queue.limits() for shard in shards)
    queue.ack(*held)
    queue.divide(1, wait=0)
    for name in names:
        queue.send(f"{name}.4", group=name)
    got = bodies(held)
    while batch := queue.receive(100):
        running = [body.partition(".")[0] for body in bodies(batch)]
        got += bodies(batch)
        # The limit holds in the shards that run empty, too; a group may be in two of them meanwhile.
        assert all(running.count(name) <= 4 for name in running)
        queue.ack(*batch)
    assert sorted(got) == sorted(f"{name}.{number}" for name in names for number in range(5))
    for name in names:
        mine = [body for body in got if body.startswith(f"{name}.")]
        assert mine.index(f"{name}.0") < mine.index(f"{name}.1")
        assert mine.index(f"{name}.2") < mine.index(f"{name}.3")
    assert len(queue.divide(1, wait=0).shards) == 1
    assert queue.groups() == []
    assert is_sound(app)


def test_a_queue_that_is_removed_leaves_no_slot(app: QWorker) -> None:
    """Neither of what runs nor of a retry that keeps its group; late acks change nothing, and a new queue is new."""
    queue = app.queue("q")
    queue.set_limit("*", concurrency=1)
    queue.send_many(["a0", "a1"], group="acme/a")
    queue.send_many(["o0", "o1"], group="o", ordered=True)
    held = queue.receive(10)
    assert sorted(bodies(held)) == ["a0", "o0"]
    queue.nack(next(each for each in held if bodies([each]) == ["o0"]), delay="1h")
    queue.remove()
    with redis_of(app) as raw:
        left = list(raw.scan_iter(f"{app.namespace}:{{q*", count=10_000))
    assert left == []
    queue = Queue(queue.client, queue.ref.namespace, "q")
    queue.send_many(["a2", "a3"], group="acme/a")
    queue.send("o2", group="o", ordered=True)
    late = next(each for each in held if bodies([each]) == ["a0"])
    assert queue.ack(late) == []
    assert sorted(bodies(queue.receive(10))) == ["a2", "a3", "o2"]  # the limits are gone as well
    assert is_sound(app)


@pytest.mark.slow
def test_a_removed_queue_frees_its_part_of_a_limit_over_several(app: QWorker) -> None:
    """Another queue may use all slots of it, though some were held in the removed one; also in async code."""
    first, second = app.queue("q"), app.queue("r")
    first.set_limit("api/", concurrency=2, with_queues=["r"])
    for queue in (first, second):
        queue.send_many([0, 1, 2], group="api/x")
    assert len(first.receive(10)) == 1

    async def remove() -> None:
        await app.aqueue("q").remove()
        await app.aclose()

    asyncio.run(remove())
    second.set_limit(
        "api/", concurrency=2
    )  # divides it now, as a reaper would within a quarter of a second
    assert len(second.receive(10)) == 2
    assert set(second.shared_limits()["api/"].queues) == {"r"}
    assert is_sound(app)


@pytest.mark.slow
@pytest.mark.parametrize("others", [(), ("other",)], ids=["of the queue", "over two queues"])
def test_a_first_limit_finds_more_running_than_a_call_counts(
    app: QWorker, others: tuple[str, ...]
) -> None:
    """The change returns when all is counted and the limit is stored; what runs goes on."""
    queue = app.queue("q")
    for number in range(10):
        queue.send_many(range(30), group=f"g{number}")
    queue.send("first", group="t/a")
    running = queue.receive(400)
    assert len(running) == 301
    queue.set_limit("t/", with_queues=others, concurrency=1)
    assert queue.limits()["t/"].concurrency == 1
    assert is_sound(app)
    queue.set_limit("*", concurrency=30)
    queue.send_many(range(30), group="g5")
    queue.send("second", group="t/b")
    assert queue.receive(400) == []
    queue.ack(*running)
    assert len(queue.receive(400)) == 31
    assert is_sound(app)


@pytest.mark.slow
def test_large_groups_are_found_among_more_than_are_looked_at(app: QWorker) -> None:
    """Hundreds of groups with a message each do not hide those with many, and these say what they wait for."""
    queue = app.queue("crowd")
    queue.set_limit("whale-1", concurrency=1)
    bodies = [b"1"]
    for number in range(700):
        queue.send_many(bodies, group=f"g{number}")
    for number in range(4):
        queue.send_many([b"1"] * 100, group=f"whale-{number}")
    found = app.client.run(groups(queue.ref, most=5, most_read=1))
    assert [(group.name, group.waiting) for group in found[:4]] == [
        (f"whale-{number}", 100) for number in (3, 2, 1, 0)
    ]
    assert found[2].concurrency == 1
    assert {group.reason for group in found} == {"turn"}
