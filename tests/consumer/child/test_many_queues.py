"""A child of more queues than one doorbell is for: several waits that continue, and glances instead of polls."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qworker import QWorker
from qworker.consumer.child.receive.glances import CountedQueues, Glances
from qworker.consumer.child.receive.poll_schedule import PollSchedule
from qworker.consumer.shards import read_shards
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE
from tests.consumer.driving import HEARD_S, Child, redis_of, running, until
from tests.topologies.servers import CLUSTERED

QUEUES = 300
pytestmark = pytest.mark.skipif(CLUSTERED, reason="a Cluster has a doorbell per slot, or none")


def names(app: QWorker, started: list[str], over: threading.Event | None = None) -> Sequence[str]:
    """Give the app a task for each of many queues, of the same name; each waits for `over`."""

    def handle(name: str) -> None:
        started.append(name)
        if over is not None:
            over.wait(HEARD_S)

    for number in range(QUEUES):
        app.task(name=f"q{number}", queue=f"q{number}")(handle)
    return [f"q{number}" for number in range(QUEUES)]


def bells(child: Child) -> int:
    """How many doorbells the child has."""
    return len(list(child.broker._fetcher.doorbells))


@pytest.mark.slow
def test_queues_share_a_few_doorbells_and_all_are_heard(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """The child waits at all of them, and starts at once whichever rings."""
    started: list[str] = []
    names(app, started)
    with running(app, concurrency=2, **only_bells) as child:
        until(lambda: child.waiting)
        assert bells(child) == 3
        for name in ("q0", "q1", "q2", "q150", f"q{QUEUES - 1}", "q0"):
            before = len(started)
            app.tasks[name].send(name)
            until(lambda before=before: len(started) > before, HEARD_S)
            until(lambda: child.waiting)
    assert started == ["q0", "q1", "q2", "q150", f"q{QUEUES - 1}", "q0"]


@pytest.mark.slow
@pytest.mark.bad_input("data found: JSON that anybody pushed")
def test_plain_pushes_are_found_while_the_child_waits(app: QWorker) -> None:
    """They ring nothing, and the waits last for longer: a glance finds them, also at a priority that is in use."""
    started: list[str] = []
    names(app, started)
    app.tasks["q7"].options(priority=4).send("q7")
    with running(app) as child, redis_of(app) as redis:
        until(lambda: started == ["q7"])
        until(lambda: child.waiting)
        for queue, level in (("q250", 0), ("q7", 4)):
            keys = QueueKeys(app.namespace, queue)
            redis.rpush(keys.ready[level], f'{{"task": "{queue}", "args": ["{queue}"]}}')
            until(lambda queue=queue: started[-1] == queue and len(started) > 1)
    assert started == ["q7", "q250", "q7"]


@pytest.mark.slow
def test_a_busy_child_gives_the_token_back(app: QWorker, only_bells: dict[str, int]) -> None:
    """Its waits at other doorbells continue while handlers run: what rings there is left to an idle child."""
    started: list[str] = []
    over = threading.Event()
    names(app, started, over)
    keys = QueueKeys(app.namespace, "q2")
    with running(app, concurrency=2, **only_bells) as busy, redis_of(app) as redis:
        for name in ("q0", "q1"):
            until(lambda: busy.waiting)
            app.tasks[name].send(name)
            until(lambda name=name: name in started)
        app.tasks["q2"].send("q2")
        # Taken when the message came, and put back, since the child has no free slot.
        until(lambda: redis.llen(keys.wake) == 1)
        assert redis.llen(keys.ready[0]) == 1
        with running(app, **only_bells):
            until(lambda: "q2" in started, HEARD_S)
            over.set()


@pytest.mark.parametrize("ends", ["it is asked to stop", "it has taken max_messages"])
@pytest.mark.slow
def test_a_child_that_ends_leaves_messages_to_others(
    app: QWorker, only_bells: dict[str, int], ends: str
) -> None:
    """Its long waits continue while the last handlers run: what rings there is not received any more."""
    started: list[str] = []
    over = threading.Event()
    names(app, started, over)
    keys = QueueKeys(app.namespace, "q2")
    most = 2 if ends == "it has taken max_messages" else 0
    with (
        running(app, concurrency=4, max_messages=most, **only_bells) as child,
        redis_of(app) as redis,
    ):
        for name in ("q0", "q1"):
            until(lambda: child.waiting)
            app.tasks[name].send(name)
            until(lambda name=name: name in started)
        if not most:
            child.broker.stop("test")
        app.tasks["q2"].send("q2")
        until(lambda: redis.llen(keys.wake) == 1)
        assert redis.llen(keys.ready[0]) == 1
        assert app.queue("q2").inspect().stats.get("received", 0) == 0
        over.set()
    assert started == ["q0", "q1"]


@pytest.mark.slow
def test_a_child_of_one_slow_handler_waits_at_one_doorbell(
    app: QWorker, only_bells: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not hear others while the handler runs: they are left to children that do."""
    monkeypatch.setattr("qworker.consumer.child.receive.waits._AWAY_MEMORY", 0.0)
    handled: list[str] = []

    def handle(name: str, seconds: float) -> None:
        time.sleep(seconds)
        handled.append(name)

    for number in range(QUEUES):
        app.task(name=f"q{number}", queue=f"q{number}")(handle)

    with running(app, **only_bells) as child:

        def send(name: str, seconds: float) -> None:
            before = len(handled)
            app.tasks[name].send(name, seconds)
            until(lambda: len(handled) > before, HEARD_S)
            until(lambda: child.waiting)

        until(lambda: child.waiting)
        # How long it is away is not known yet.
        assert bells(child) == 1
        send("q299", 0.2)
        assert bells(child) == 1
        # It is back at once, and stays so: the waits at the other doorbells do not hold it up.
        until(
            lambda: (
                send("q1", 0.0) or (bells(child) == 3 and (send("q0", 0.0) or bells(child) == 3))
            )
        )
        send("q150", 0.2)
        assert bells(child) == 1
        send("q1", 0.0)


@pytest.mark.slow
def test_an_idle_child_looks_at_two_keys_of_a_queue(app: QWorker) -> None:
    """After the first poll it glances, and polls a tenth of its queues beside."""
    names(app, [])
    with running(app) as child:
        until(lambda: child.waiting)
        fetcher = child.broker._fetcher
        glances = fetcher._poller._glances
        assert glances is not None
        assert [len(group.command().args) for group in glances.groups] == [201, 201, 201]
        queues = fetcher._chooser.queues
        queues[5].levels = (3, 9)
        assert [len(group.command().args) for group in glances.groups] == [203, 201, 201]


@pytest.mark.slow
def test_a_glance_that_is_refused_is_followed_by_a_poll(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue may be the cause, which the poll leaves out: messages of the others are found all the same."""
    monkeypatch.setattr(CountedQueues, "command", lambda _: raw("EXISTS", decode=int))
    monkeypatch.setattr(Glances, "next_slice", lambda _: ())
    started: list[str] = []
    names(app, started)
    with running(app) as child, redis_of(app) as redis:
        until(lambda: child.waiting)
        keys = QueueKeys(app.namespace, "q250")
        redis.rpush(keys.ready[0], '{"task": "q250", "args": ["q250"]}')
        until(lambda: started == ["q250"], HEARD_S)


@pytest.mark.slow
def test_a_glance_on_its_way_takes_no_reply_of_an_ack_before_a_start(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While at-most-once messages are acked, glances find messages of another queue and are followed by polls."""
    monkeypatch.setattr(PollSchedule, "due_in", lambda *_, **__: 0.0)
    started: list[str] = []
    names(app, started)
    keys = QueueKeys(app.namespace, "q250")

    with redis_of(app) as redis:

        @app.task(queue="once", at_most_once=True)
        def once(number: int) -> None:
            redis.rpush(keys.ready[0], '{"task": "q250", "args": ["q250"]}')
            started.append(f"once {number}")

        once.send_many(once.call(number) for number in range(20))
        with running(app, max_batch=1):
            until(lambda: len(started) == 40, HEARD_S)
    assert sorted(started) == sorted([*["q250"] * 20, *(f"once {number}" for number in range(20))])


@pytest.mark.slow
def test_slices_cover_all_queues(app: QWorker) -> None:
    """After ten rounds each was polled once, whatever their number."""
    names(app, [])
    with running(app) as child:
        queues = child.broker._fetcher._chooser.queues
    for number in (129, 180, 299):
        glances = Glances(queues[:number])
        seen = [queue.shard for _ in range(10) for queue in glances.next_slice()]
        assert sorted(set(seen)) == sorted(queue.shard for queue in queues[:number])


def test_few_messages_do_not_make_many_queues_busy() -> None:
    """The next poll is due soon after one message to few queues, and after several to more: a poll costs as much."""
    few, hundred, many = PollSchedule(3), PollSchedule(100), PollSchedule(2000, glances=True)

    def due(schedule: PollSchedule, activity: int) -> float:
        schedule.begin(100.0)
        for _ in range(activity):
            schedule.note_activity()
        return schedule.due_in(100.0, any_ready=False, can_wait=True, peers=1)

    assert due(few, 1) == pytest.approx(0.05)
    assert [due(hundred, 8), due(hundred, 9)] == pytest.approx([2.0, 0.05])
    assert [due(many, 8), due(many, 9)] == pytest.approx([2.0, 0.4])


def test_queues_without_attributes_are_not_asked_how_they_are_divided(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hundreds of queues only those near one with attributes are, and the answer is the same."""
    queues = [f"q{number}" for number in range(QUEUES)]
    app.queue("q250").divide(3, wait=0)
    calls: list[int] = []
    execute_each = app.client.execute_each

    def counted(commands: Sequence[Command[Any]], **given: Any) -> list[Any]:
        calls.append(len(commands))
        return execute_each(commands, **given)

    monkeypatch.setattr(app.client, "execute_each", counted)
    division = read_shards(app.client, app.namespace, queues)
    assert calls == [3, 100]
    assert list(division) == queues
    assert [queue for queue in queues if division[queue] != WHOLE] == ["q250"]
    assert division["q250"] is not None
    assert division["q250"].active == 3
