"""What is received, and when: priorities, several queues, pauses, broken queues, batches, bursts."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import closing

import pytest
import structlog

from qworker import QWorker
from qworker.consumer.child.connection import Connection
from qworker.engine.receive import Batch, Suspects, settle_receive
from qworker.errors import BrokenQueueError, InDoubtError, UnavailableError
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.child.fetching import said, script_calls
from tests.consumer.child.test_executors import BrokenLogger
from tests.consumer.driving import (
    HEARD_S,
    assembled,
    drain,
    history_of,
    redis_of,
    running,
    until,
)
from tests.relay import Relay
from tests.topologies.servers import CLUSTERED


def test_higher_priorities_come_first(app: QWorker) -> None:
    """Of what is ready the highest priority is handled first, and within one the oldest."""
    handled = []
    task = app.task(name="task")(lambda n: handled.append(n))
    for n, priority in enumerate((0, 9, 5, 0, 9)):
        task.options(priority=priority).send(n)

    drain(app)

    assert handled == [1, 4, 2, 0, 3]


def test_queues_are_served_strictly_in_their_order(app: QWorker) -> None:
    """Without weights a queue is served only while those named before it are empty."""
    handled: list[str] = []
    for name in ("high", "low"):
        task = app.task(name=name, queue=name)(lambda name: handled.append(name))
        task.send_many(task.call(name) for _ in range(30))

    drain(app, queues=["high", "low"], max_batch=5)

    assert handled == ["high"] * 30 + ["low"] * 30


@pytest.mark.slow
def test_a_new_message_of_the_higher_queue_comes_before_the_rest_of_the_lower_one(
    app: QWorker,
) -> None:
    """A queue that was idle is seen soon, also while a lower one has enough to do forever."""
    handled: list[tuple[str, int]] = []

    @app.task(queue="low")
    def low(n: int) -> None:
        time.sleep(0.002)
        handled.append(("low", n))

    @app.task(queue="high")
    def high() -> None:
        handled.append(("high", 0))

    low.send_many(low.call(n) for n in range(2000))
    with running(app, queues=["high", "low"]):
        until(lambda: len(handled) > 100)
        high.send()
        sent = len(handled)
        until(lambda: ("high", 0) in handled)
    # Half a second of work would be 250 messages.
    assert handled.index(("high", 0)) - sent < 150


def test_an_idle_worker_hears_of_every_one_of_its_queues(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """A worker that waits on several empty queues starts at once on whichever gets a message."""
    started: list[str] = []
    for name in ("a", "b", "c"):
        app.task(name=name, queue=name)(lambda name: started.append(name))

    with running(app, **only_bells) as child:
        for name in ("c", "a", "b"):
            until(lambda: child.waiting)
            app.tasks[name].send(name)
            until(lambda name=name: name in started, HEARD_S)


@pytest.mark.slow
def test_weights_share_the_worker_between_queues(app: QWorker) -> None:
    """With weights no queue starves: each gets about its share while all have work."""
    handled: list[str] = []
    for name, count in (("heavy", 850), ("light", 350)):
        task = app.task(name=name, queue=name)(lambda name: handled.append(name))
        task.send_many(task.call(name) for _ in range(count))

    drain(app, weights={"heavy": 3.0, "light": 1.0}, queues=["heavy", "light"], max_batch=2)

    share = Counter(handled[:1000])
    assert 650 < share["heavy"] < 850


def test_a_paused_queue_is_left_alone_until_it_is_resumed(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """While receiving is paused nothing is received; a resume is noticed at once, by a worker of two queues too."""
    handled: list[str] = []
    for name in ("a", "b"):
        app.task(name=name, queue=name)(lambda name: handled.append(name))
    app.queue("a").pause("out")
    app.tasks["a"].send("a")
    with running(app, **only_bells) as child:
        app.tasks["b"].send("b")
        until(lambda: handled == ["b"])
        until(lambda: child.waiting)
        app.queue("a").resume()
        until(lambda: handled == ["b", "a"], HEARD_S)


def test_a_single_paused_queue_is_resumed_at_once(app: QWorker, only_bells: dict[str, int]) -> None:
    """A worker of one paused queue does not ask in vain all the time, and hears of the resume."""
    handled: list[int] = []
    task = app.task(name="task")(lambda n: handled.append(n))
    queue = app.queue("default")
    queue.pause("out")
    task.send(1)
    with running(app, **only_bells) as child, redis_of(app) as redis:
        until(lambda: child.waiting)
        before = redis.info("stats")["total_commands_processed"]
        time.sleep(0.5)
        assert redis.info("stats")["total_commands_processed"] - before < 200
        queue.resume()
        until(lambda: handled == [1], HEARD_S)


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("part", ["ready", "wake", "stats", "unacked", "dead"])
def test_a_broken_queue_is_skipped_and_others_are_served(app: QWorker, part: str) -> None:
    """A key of another type stops its own queue only; its messages stay where they are, until it is repaired."""
    handled: list[str] = []
    for name in ("bad", "good"):
        task = app.task(name=name, queue=name)(lambda name: handled.append(name))
        task.send_many(task.call(name) for _ in range(2))
    key = f"{app.namespace}:{{bad}}:{part}"
    with redis_of(app) as redis:
        if redis.exists(key):
            redis.rename(key, f"{key}-kept")
        redis.set(key, "not ours")
        with running(app, queues=["bad", "good"]):
            until(lambda: handled == ["good", "good"])
            app.tasks["good"].send("good")
            until(lambda: len(handled) == 3)
        assert "bad" not in handled
        redis.delete(key)
        if redis.exists(f"{key}-kept"):
            redis.rename(f"{key}-kept", key)

    drain(app)

    assert handled.count("bad") == 2


def test_a_logger_that_raises_does_not_end_the_worker(
    app: QWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the worker itself has to log goes to stderr then, and the other queues continue."""
    handled: list[str] = []
    bad = app.task(name="bad", queue="bad")(lambda: handled.append("bad"))
    good = app.task(name="good", queue="good")(lambda: handled.append("good"))
    with redis_of(app) as redis:
        redis.set(QueueKeys(app.namespace, "bad").ready[0], "not ours")
    good.send()
    structlog.configure(logger_factory=lambda *_: BrokenLogger())
    with running(app) as child:
        until(lambda: handled == ["good"] and child.waiting)
        good.send()
        until(lambda: handled == ["good", "good"])
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    broken = [line for line in lines if line["event"] == "queue_broken"]
    assert [(line["queue"], line["log_problem"]) for line in broken] == [(bad.queue, "SystemExit")]


def test_queue_that_a_user_may_not_receive_from_is_not_called_broken(
    logs: list[dict[str, object]],
) -> None:
    """Its key is sound: the log names the refusal, as that of a bare client does."""
    with servers.start("valkey", guarded=False) as server:
        rules = ("on", ">pw", "~*", "+@all", "-evalsha", "-eval")
        server.redis().execute_command("ACL", "SETUSER", "guest", *rules)
        with closing(QWorker("ns", url=f"unix://guest:pw@{server.socket}")) as app:
            app.task(name="task", queue="q")(lambda: None)
            with running(app):
                until(lambda: any(line["event"] == "receive_failed" for line in logs))
    (line,) = [line for line in logs if line["event"] == "receive_failed"]
    assert (line["queue"], line["kind"]) == ("q", "AccessDeniedError")
    assert not [line for line in logs if line["event"] == "queue_broken"]


@pytest.mark.parametrize("queues", [1, 3])
def test_messages_of_a_receive_in_doubt_come_back_with_the_next_reply(
    app: QWorker, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease that it may have made is given back, uncounted, long before its visibility timeout.

    Of several queues it is a poll that is answered: the queue is empty but for the lease, so nothing is received.
    """
    for number in range(1, queues):
        app.task(lambda: None, name=f"other{number}", queue=f"other{number}")
    monkeypatch.setattr("qworker.consumer.child.receive.receiver._AWAY_PAUSE_S", 0.1)
    finish, lost, handled = Connection.finish, list[Batch](), list[int]()

    def lose_first_batch(connection: Connection) -> object:
        reply = finish(connection)
        if isinstance(reply, Batch) and reply.items and not lost:
            lost.append(reply)
            raise InDoubtError("the reply was lost")
        return reply

    @app.task
    def handle(n: int) -> None:
        handled.append(n)

    monkeypatch.setattr(Connection, "finish", lose_first_batch)
    handle.send(1)
    with running(app, visibility_ms=600_000):
        until(lambda: handled)
    assert lost
    stats = history_of(app.queue("default"))
    assert (stats["released"], stats.get("timeouts", 0)) == (1, 0)


def test_a_lease_that_a_receive_in_doubt_makes_later_is_given_back_too(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may read the bytes of a closed connection after those of the next one."""
    monkeypatch.setattr("qworker.consumer.child.receive.lease_returns._AGAIN_S", 0.0)
    app.task(name="task")(lambda: None)
    default = app.queue("default")
    default.send({"n": 1})
    with assembled(app) as child:
        fetcher = child.broker._fetcher
        returns = fetcher.receiver.returns
        (queue,) = fetcher._chooser.queues
        late = app.client.ids.lease_id()

        def answer() -> None:
            returns.answered(queue)
            returns.begin()
            fetcher._pipeline.take_all()

        returns.in_doubt(queue, late)
        answer()
        assert len(app.client.execute(settle_receive(default.keys, late, 1)).items) == 1
        answer()
        assert default.inspect().ready == 1
        assert not returns
    assert history_of(default)["released"] == 1


def test_an_ending_child_gives_back_leases_in_doubt(app: QWorker) -> None:
    """Whether or not their queue has answered since."""
    app.task(name="task")(lambda: None)
    default = app.queue("default")
    default.send({"n": 1})
    with assembled(app) as child:
        fetcher = child.broker._fetcher
        lost = app.client.ids.lease_id()
        app.client.execute(settle_receive(default.keys, lost, 1))
        fetcher.receiver.returns.in_doubt(fetcher._chooser.queues[0], lost)
        fetcher.end()
    assert default.inspect().ready == 1


def test_a_repeated_receive_without_messages_is_in_doubt(app: QWorker) -> None:
    """It makes no lease, but its first sending may yet arrive."""
    app.task(name="task")(lambda: None)
    with assembled(app) as child:
        fetcher = child.broker._fetcher
        receiver, connection = fetcher.receiver, fetcher._pipeline.connection
        (queue,) = fetcher._chooser.queues
        for repeated in (False, True):
            pending = receiver.enter(queue)
            command = receiver.command(pending, 1, Suspects.NEVER)
            connection.begin(command.repeated() if repeated else command)
            receiver.take(connection, pending)
            assert bool(receiver.returns) is repeated


def test_messages_of_a_lease_recalled_before_its_reply_go_back_unrun(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor could not see which it has; none runs here as well as elsewhere."""
    finish, recalled, handled = Connection.finish, list[Batch](), list[int]()

    @app.task
    def handle(n: int) -> None:
        handled.append(n)

    handle.send_many(handle.call(n) for n in range(3))
    with running(app, max_batch=3) as child:

        def recall_first_batch(connection: Connection) -> object:
            reply = finish(connection)
            if isinstance(reply, Batch) and reply.items and not recalled:
                recalled.append(reply)
                for lease in child.board.leases.views():
                    child.board.leases.recall(lease.slot)
            return reply

        monkeypatch.setattr(Connection, "finish", recall_first_batch)
        handle.send_many(handle.call(n) for n in range(3, 6))
        until(lambda: app.queue("default").inspect().stored == 0)
    assert recalled
    assert sorted(handled) == [0, 1, 2, 3, 4, 5]
    assert history_of(app.queue("default"))["released"] == len(recalled[0].items)


def test_a_lease_recalled_before_its_reply_goes_back_at_once(app: QWorker) -> None:
    """Not only when its messages would have started: every slot may be taken by a slow handler."""
    app.task(name="task")(lambda: None)
    default = app.queue("default")
    default.send_many([b"{}"] * 2)
    with assembled(app) as child:
        fetcher = child.broker._fetcher
        receiver, connection = fetcher.receiver, fetcher._pipeline.connection
        (queue,) = fetcher._chooser.queues
        for recalled in (True, False):
            pending = receiver.enter(queue)
            connection.begin(receiver.command(pending, 2, Suspects.NEVER))
            if recalled:
                child.board.leases.recall(pending.slot)
            receiver.take(connection, pending)
            receiver.returns.begin()
            fetcher._pipeline.take_all()
            assert len(receiver.take_arrived()) == (0 if recalled else 2)
            assert default.inspect().ready == (2 if recalled else 0)
    assert history_of(default)["released"] == 2


def test_a_queue_whose_server_is_away_is_asked_again_sooner_than_a_broken_one(
    app: QWorker,
) -> None:
    """A replica may serve in a moment; a key of another type stays."""
    app.task(lambda: None, name="handle", queue="default")
    app.task(lambda: None, name="other", queue="other")
    with running(app) as child:
        receiver, chooser = child.broker._fetcher.receiver, child.broker._fetcher._chooser
        pauses = []
        for error in (UnavailableError("away"), BrokenQueueError("key", "string")):
            before = time.monotonic()
            receiver.note_error(chooser.queues[0], error)
            after = time.monotonic()
            until_s = chooser._broken_until[chooser.queues[0].shard]
            pauses.append((until_s - after, until_s - before))
    assert all(least <= s <= most for s, (least, most) in zip((1, 5), pauses, strict=True)), pauses


def test_a_group_whose_time_has_come_is_asked_for_during_a_wait(app: QWorker) -> None:
    """Nothing rings for it, and the wait may last for two more seconds."""
    app.task(name="task")(lambda: None)
    with assembled(app) as child:
        fetcher = child.broker._fetcher
        (queue,) = fetcher._chooser.queues
        fetcher.begin_wait(idle=False)
        for due_at in (time.monotonic() + 60.0, 0.0):
            assert not fetcher.fetching
            fetcher.receiver.due[queue.shard] = queue, due_at
            fetcher.more(0)
        assert fetcher.fetching
        fetcher.end()


@pytest.mark.parametrize("waits", [True, False])
def test_a_child_that_ends_rings_for_a_token_that_its_wait_may_have_taken(
    app: QWorker, waits: bool
) -> None:
    """The others would sleep for two seconds beside a message. Without a wait no token is lost."""
    for name in ("a", "b"):
        app.task(name=name, queue=name)(lambda: None)
    keys = QueueKeys(app.namespace, "b")
    with assembled(app) as child, redis_of(app) as redis:
        fetcher = child.broker._fetcher
        fetcher.more(0)
        fetcher._pipeline.take_all()
        if waits:
            fetcher.begin_wait(idle=True)
            assert fetcher.doorbells.waiting
        redis.rpush(keys.ready[0], '{"task": "b"}')
        fetcher.end()
        until(lambda: redis.info("clients")["blocked_clients"] == 0)
        fetcher.ring()
        assert redis.llen(keys.wake) == waits


def test_shards_take_turns(app: QWorker) -> None:
    """Messages of a queue wait about as long in whichever shard they are."""
    handled: list[int] = []
    task = app.task(name="task", queue="q")(lambda shard: handled.append(shard))
    app.queue("q").divide(2, wait=0)
    with redis_of(app) as redis:
        for shard, name in enumerate(("q", "q/1")):
            item = f'{{"task": "{task.name}", "args": [{shard}]}}'
            redis.rpush(QueueKeys(app.namespace, name).ready[0], *[item] * 30)
    drain(app, max_batch=5)
    assert sorted(handled) == [0] * 30 + [1] * 30
    assert handled[:30].count(1) >= 10


# -- plain pushes, bursts, limits --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.bad_input("data found: JSON that anybody pushed")
@pytest.mark.skipif(CLUSTERED, reason="MONITOR hears one node")
def test_what_others_push_is_found_without_a_bell(app: QWorker) -> None:
    """A plain RPUSH rings nothing; a waiting worker finds it when its wait is over, two seconds later at most."""
    handled: list[int] = []
    app.task(name="plain", queue="q")(lambda n: handled.append(n))
    keys = QueueKeys(app.namespace, "q")
    with redis_of(app) as redis, redis.monitor() as commands, running(app) as child:
        waits = (command for command in said(commands) if command.startswith(f"BLPOP {keys.wake} "))
        wait_s = next(waits).split()[-1]
        until(lambda: child.waiting)
        redis.rpush(keys.ready[0], '{"task": "plain", "args": [1]}')
        until(lambda: handled)
    assert 0 < float(wait_s) <= 2


def test_a_burst_handles_ready_messages_and_ends(app: QWorker) -> None:
    """A burst leaves nothing that is ready, not even what its own handlers sent, and waits for nothing delayed."""
    handled: list[int] = []

    @app.task
    def chain(n: int) -> None:
        handled.append(n)
        if n:
            chain.send(n - 1)
        else:
            chain.send_later("1h", 5)

    chain.send(5)

    drain(app)

    assert handled == [5, 4, 3, 2, 1, 0]
    assert app.queue("default").inspect().delayed == 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_child_ends_after_max_messages(app: QWorker, concurrency: int) -> None:
    """With max_messages a child ends between messages after exactly this many, and the others stay ready."""
    handled: list[int] = []
    task = app.task(name="task")(lambda n: handled.append(n))
    task.send_many(task.call(n) for n in range(100))

    with running(app, max_messages=30, concurrency=concurrency) as child:
        until(lambda: child.broker.stopping)

    assert sorted(handled) == list(range(30))
    assert child.broker.why_stopped == "recycled"
    seen = app.queue("default").inspect()
    assert (seen.ready, seen.unacked) == (70, 0)


def test_a_child_that_hears_a_bell_takes_no_more_than_max_messages(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """However many slots are free, what it may not start is left to others."""
    handled: list[int] = []
    for name in ("a", "b"):
        app.task(name=name, queue=name)(lambda n: handled.append(n))
    with running(app, max_messages=2, concurrency=4, **only_bells) as child:
        until(lambda: child.waiting)
        app.tasks["b"].send_many(app.tasks["b"].call(n) for n in range(4))
        until(lambda: child.broker.stopping)
    assert sorted(handled) == [0, 1]
    assert history_of(app.queue("b"))["received"] == 2


def test_slow_messages_are_taken_one_at_a_time(app: QWorker) -> None:
    """Of slow messages a child holds no more than run: the others are there for other workers."""
    gate = threading.Event()

    @app.task
    def slow() -> None:
        gate.wait(0.1)

    slow.send_many([slow.call()] * 5)
    with running(app, concurrency=2):
        until(lambda: app.queue("default").inspect().stats.get("acked", 0) >= 2)
        seen = app.queue("default").inspect()
        assert seen.unacked <= 2
        gate.set()
        until(lambda: app.queue("default").inspect().stored == 0)


@pytest.mark.slow
def test_fast_messages_are_taken_in_large_batches(app: QWorker) -> None:
    """Messages of microseconds are received many at a time: hundreds, on an idle core."""
    task = app.task(name="task")(lambda: None)
    task.send_many([task.call()] * 5000)
    before = script_calls(app)

    drain(app)

    assert script_calls(app) - before < 500


@pytest.mark.slow
def test_a_child_learns_how_far_its_server_is(app: QWorker) -> None:
    """The shortest trip of a receive, which tells whether few messages come one by one."""
    app.task(name="task", queue="q")(lambda: None)
    if "+" in app.url.partition(":")[0]:
        pytest.skip("a relay stands in front of one server")
    with Relay(app.url, rtt_ms=30) as relay:
        worker = QWorker(app.namespace, url=relay.url)
        worker.task(name="task", queue="q")(lambda: None)
        app.tasks["task"].send()
        with running(worker) as child:
            until(lambda: app.queue("q").inspect().stored == 0)
            (queue,) = child.broker._fetcher._chooser.queues
        worker.close()
    assert queue.trip_s is not None
    assert queue.trip_s >= 0.03
