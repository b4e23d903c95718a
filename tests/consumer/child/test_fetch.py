"""What is received, and when: priorities, several queues, pauses, broken queues, suspects, waiting."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog
from redis.client import Monitor

from qworker import Bury, QWorker, Retry
from qworker.client.queue import Queue
from qworker.consumer.board.board import Board
from qworker.consumer.board.states import LeaseState, LeaseView
from qworker.consumer.child.connection import Connection
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.engine.raw import raw
from qworker.engine.receive import Batch, Suspects
from qworker.errors import BrokenQueueError, InDoubtError, UnavailableError
from qworker.wire.codec import encode_call
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.child.test_executors import BrokenLogger
from tests.consumer.driving import (
    DEADLINE_S,
    HEARD_S,
    assembled,
    drain,
    history_of,
    redis_of,
    running,
    until,
)
from tests.lua.drive import own
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
    for name, count in (("heavy", 1700), ("light", 700)):
        task = app.task(name=name, queue=name)(lambda name: handled.append(name))
        task.send_many(task.call(name) for _ in range(count))

    drain(app, weights={"heavy": 3.0, "light": 1.0}, queues=["heavy", "light"], max_batch=2)

    share = Counter(handled[:2000])
    assert 1300 < share["heavy"] < 1700


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


@pytest.mark.bad_input("data found: key of another type")
def test_outcomes_of_a_broken_queue_are_sent_when_it_is_repaired(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handled while its queue broke is acked later: it is not handled twice."""
    monkeypatch.setattr("qworker.consumer.child.settle.ack_buffer._REFUSED_PAUSE_S", 0.1)
    monkeypatch.setattr("qworker.consumer.child.receive.receiver._BROKEN_PAUSE_S", 0.1)
    handled: list[int] = []
    key = QueueKeys(app.namespace, "default").dead

    @app.task
    def handle(n: int) -> None:
        with redis_of(app) as redis:
            redis.set(key, "not ours")
        handled.append(n)

    handle.send_many(handle.call(n) for n in range(3))
    with running(app, max_batch=3, concurrency=3):
        until(lambda: len(handled) == 3)
        time.sleep(0.3)
        assert app.client.execute(_length(app)) == 1
        with redis_of(app) as redis:
            redis.delete(key)
        until(lambda: app.queue("default").inspect().stored == 0)

    assert sorted(handled) == [0, 1, 2]
    assert history_of(app.queue("default"))["acked"] == 3


@pytest.mark.bad_input("data found: key of another type")
def test_a_child_stops_although_its_queue_takes_no_outcomes(app: QWorker) -> None:
    """It tries once more at its end; the lease is left to its supervisor, or to its deadline."""
    handled: list[int] = []
    key = QueueKeys(app.namespace, "default").dead

    @app.task
    def handle(n: int) -> None:
        with redis_of(app) as redis:
            redis.set(key, "not ours")
        handled.append(n)

    handle.send(1)
    with running(app):
        until(lambda: handled)
    with redis_of(app) as redis:
        redis.delete(key)
    assert history_of(app.queue("default"))["unacked"] == 1


def test_partly_sent_outcomes_are_not_sent_again(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that went back would go back again each time: the lease is let go, and runs out with what is left."""
    monkeypatch.setattr("qworker.consumer.child.settle.ack_buffer._REFUSED_PAUSE_S", 0.1)
    monkeypatch.setattr("qworker.consumer.child.receive.receiver._BROKEN_PAUSE_S", 0.1)
    with servers.start("valkey") as server, server.redis() as redis:
        redis.execute_command("ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all", "-xadd")
        app = QWorker(namespace, url=f"unix://u:pw@{server.socket}")
        keys = QueueKeys(namespace, "default")

        @app.task
        def handle(n: int) -> None:
            if n == 1:
                raise Retry(delay="1h")
            if n == 2:
                raise Bury

        handle.send_many(handle.call(n) for n in range(3))
        with running(app, max_batch=3, concurrency=1) as child:
            until(lambda: redis.zcard(keys.delayed))
            until(lambda: not _held(child.board))
        assert redis.zcard(keys.delayed) == 1
        assert redis.zcard(keys.unacked) == 1
        [lease] = redis.keys(keys.lease("*"))
        assert b"[2]" in redis.hvals(lease)[-1]
        app.close()


def test_acks_are_sent_again_where_a_script_has_failed_midway(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They change nothing twice, and a message whose ack was forgotten would be handled again."""
    monkeypatch.setattr("qworker.consumer.child.settle.ack_buffer._REFUSED_PAUSE_S", 0.1)
    handled: list[int] = []
    others = threading.Event()
    with servers.start("valkey") as server, server.redis() as redis:
        redis.execute_command("ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all")
        app = QWorker(namespace, url=f"unix://u:pw@{server.socket}")

        @app.task
        def handle(n: int) -> None:
            handled.append(n)
            if n:
                others.wait(DEADLINE_S)
            else:
                redis.execute_command("ACL", "SETUSER", "u", "-hdel")

        handle.send_many(handle.call(n) for n in range(3))
        with running(app, max_batch=3, concurrency=3) as child:
            until(lambda: len(handled) == 3 and redis.acl_log())
            redis.execute_command("ACL", "SETUSER", "u", "+hdel")
            until(lambda: history_of(app.queue("default")).get("acked") == 1)
            others.set()
            until(lambda: app.queue("default").inspect().stored == 0)
            until(lambda: not _held(child.board))
        assert sorted(handled) == [0, 1, 2]
        assert history_of(app.queue("default"))["acked"] == 3
        app.close()


def test_messages_of_a_receive_in_doubt_come_back_with_the_next_reply(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease that it may have made is given back, uncounted, long before its visibility timeout."""
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
    default.send_all([b"{}"] * 2)
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
            receiver.release_all()
            assert len(receiver.take_arrived()) == (0 if recalled else 2)
            assert default.inspect().ready == (2 if recalled else 0)
    assert history_of(default)["released"] == 2


def test_an_ack_that_comes_too_late_is_counted(app: QWorker) -> None:
    """Another receiver has the message by then."""

    @app.task
    def handle() -> None:
        taken = Queue(app.client, app.namespace, "default").claim(1, elapsed="0s")
        assert len(taken) == 1

    handle.send()
    with running(app) as child:
        until(lambda: child.board.stale)
        assert child.board.stale == 1
    assert history_of(app.queue("default"))["stale"] == 1


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
            receiver.note_error(chooser.queues[0], error)
            until_s = chooser._broken_until[chooser.queues[0].shard]
            pauses.append(round(until_s - time.monotonic()))
    assert pauses == [1, 5]


def _held(board: Board) -> list[LeaseView]:
    return [lease for lease in board.leases.views() if lease.state is LeaseState.HELD]


def _length(app: QWorker) -> object:

    return raw("ZCARD", QueueKeys(app.namespace, "default").unacked, decode=int)


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


def said(commands: Monitor) -> Iterator[str]:
    """Every command that the server gets, as it arrives."""
    while True:
        yield str(commands.next_command()["command"])


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


def test_fast_messages_are_taken_in_large_batches(app: QWorker) -> None:
    """Messages of microseconds are received many at a time: hundreds, on an idle core."""
    task = app.task(name="task")(lambda: None)
    task.send_many([task.call()] * 5000)
    before = _calls(app)

    drain(app)

    assert _calls(app) - before < 500


def _calls(app: QWorker) -> int:
    with redis_of(app) as redis:
        stats = redis.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


# -- suspects ----------------------------------------------------------------------------------


def make_suspects(app: QWorker, number: int) -> None:
    """Turn the first ready messages into suspects, as two crashes in company would."""
    keys = QueueKeys(app.namespace, "default")
    with redis_of(app) as redis:
        for _ in range(number):
            item = redis.lpop(keys.ready[0])
            assert isinstance(item, bytes)
            redis.rpush(keys.suspect, item.replace(b" 0 0 0 0\n", b" 2 0 0 2\n"))


@pytest.mark.slow
@pytest.mark.skipif(CLUSTERED, reason="counts the commands of one node")
def test_a_busy_child_leaves_the_bell_of_a_suspect_to_others_for_a_moment(app: QWorker) -> None:
    """It rings again for them, and must not hear only itself, as fast as it can."""
    gate, running_on, handled = threading.Event(), list[int](), list[int]()

    @app.task(queue="other")
    def hold() -> None:
        running_on.append(1)
        gate.wait(DEADLINE_S)

    @app.task
    def handle(n: int) -> None:
        handled.append(n)

    default = app.queue("default")
    default.pause("out")
    handle.send(1)
    make_suspects(app, 1)
    with running(app, concurrency=2), redis_of(app) as redis:
        hold.send()
        until(lambda: running_on)
        default.resume()
        before = redis.info("commandstats")["cmdstat_blpop"]["calls"]
        time.sleep(1.0)
        heard = redis.info("commandstats")["cmdstat_blpop"]["calls"] - before
        gate.set()
        until(lambda: handled)
    assert heard < 30


@pytest.mark.parametrize("takes_suspects", [True, False])
def test_a_suspect_runs_alone(app: QWorker, takes_suspects: bool) -> None:
    """While a suspect runs its child runs nothing else, however many could."""
    lock = threading.Lock()
    at_once: set[int] = set()
    beside: dict[int, set[int]] = {}

    @app.task
    def handle(n: int) -> None:
        with lock:
            at_once.add(n)
            for number in at_once:
                beside.setdefault(number, set()).update(at_once)
        time.sleep(0.005)
        with lock:
            at_once.discard(n)

    handle.send_many(handle.call(n) for n in range(60))
    make_suspects(app, 3)

    drain(app, concurrency=8, takes_suspects=takes_suspects)

    assert [beside[n] for n in range(3)] == [{0}, {1}, {2}]
    assert max(len(board) for board in beside.values()) > 2
    assert history_of(app.queue("default"))["acked"] == 60


@pytest.mark.slow
def test_suspects_are_taken_while_their_child_waits_for_few_handlers(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on the time that it has paused for them, not on the time since the first pause."""
    monkeypatch.setattr("qworker.consumer.child.receive.suspect_turns._DRAIN_S", 0.4)
    monkeypatch.setattr("qworker.consumer.child.receive.suspect_turns._DRAIN_EVERY_S", 1000.0)
    handled: list[int] = []

    @app.task
    def handle(n: int) -> None:
        handled.append(n)
        time.sleep(0.002)

    handle.send_many(handle.call(n) for n in range(1500))
    queue = app.queue("default")
    with redis_of(app) as redis, running(app, max_batch=10):
        for n in (-1, -2, -3):
            body = encode_call(handle.name, [n], {}).decode()
            redis.rpush(queue.keys.suspect, own(f"s{-n}", receives=1, timeouts=1, body=body))
            until(lambda n=n: n in handled)
            # The next one comes when as much time is over as it may pause.
            after = len(handled) + 250
            until(lambda after=after: len(handled) >= after)
        until(lambda: len(handled) == 1503)

    assert handled.index(-3) < 1400


def test_a_child_that_becomes_idle_takes_a_suspect_at_once(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """A suspect that came while the child was busy does not wait until the child's wait at the doorbell is over."""
    times: dict[str, float] = {}

    @app.task
    def slow() -> None:
        times["begun"] = time.monotonic()
        time.sleep(0.6)
        times["over"] = time.monotonic()

    @app.task
    def odd() -> None:
        times["odd"] = time.monotonic()

    slow.send()
    with running(app, concurrency=4, **only_bells), redis_of(app) as redis:
        until(lambda: "begun" in times)
        keys = QueueKeys(app.namespace, "default")
        body = odd.signature.encode((), {}).decode()
        redis.rpush(keys.suspect, f"q1 odd 1 1 0 1 0\n{body}")
        redis.rpush(keys.wake, 1)
        until(lambda: "odd" in times, HEARD_S)
    assert times["over"] < times["odd"]


def test_a_child_that_hears_a_bell_beside_a_suspect_passes_it_on(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """Its wait began before the suspect did: the token is not for it, and others must not sleep on."""
    started: list[str] = []
    ends = {"slow": threading.Event(), "odd": threading.Event()}

    def begin(name: str) -> None:
        started.append(name)
        if name in ends:
            ends[name].wait(DEADLINE_S)

    slow = app.task(name="slow", queue="busy")(lambda: begin("slow"))
    odd = app.task(name="odd", queue="odd")(lambda: begin("odd"))
    quick = app.task(name="quick", queue="odd")(lambda: begin("quick"))
    other = app.task(name="other", queue="other")(lambda: begin("other"))

    slow.send()
    with running(app, concurrency=4, **only_bells) as busy, redis_of(app) as redis:
        until(lambda: started == ["slow"] and busy.waiting)
        body = odd.signature.encode((), {}).decode()
        redis.rpush(QueueKeys(app.namespace, "odd").suspect, f"q1 odd 1 1 0 1 0\n{body}")
        # With it the child hears that there is a suspect, which is not for it yet.
        quick.send()
        until(lambda: "quick" in started and busy.waiting)
        ends["slow"].set()
        until(lambda: "odd" in started)
        with running(app, queues=["other"], **only_bells) as idle:
            until(lambda: idle.waiting)
            assert busy.waiting, "the first to hear the bell"
            other.send()
            until(lambda: "other" in started, HEARD_S)
            assert not ends["odd"].is_set()
        ends["odd"].set()


def test_a_busy_child_leaves_a_suspect_to_an_idle_one(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """Who hears the bell for a suspect and may not take it passes the token on."""
    times: dict[str, float] = {}
    over = threading.Event()

    @app.task(queue="busy")
    def slow() -> None:
        times["begun"] = time.monotonic()
        over.wait(DEADLINE_S)

    @app.task(queue="odd")
    def odd() -> None:
        times["odd"] = time.monotonic()

    slow.send()
    with running(app, concurrency=4, **only_bells) as busy, redis_of(app) as redis:
        until(lambda: "begun" in times)
        with running(app, queues=["odd"], **only_bells) as idle:
            until(lambda: busy.waiting and idle.waiting)
            keys = QueueKeys(app.namespace, "odd")
            body = odd.signature.encode((), {}).decode()
            redis.rpush(keys.suspect, f"q1 odd 1 1 0 1 0\n{body}")
            redis.rpush(keys.wake, 1)
            until(lambda: "odd" in times, HEARD_S)
        over.set()


def test_suspects_do_not_keep_others_waiting(app: QWorker) -> None:
    """A fresh message is handled among many suspects, and a suspect among many fresh ones."""
    handled: list[int] = []
    task = app.task(name="task")(lambda n: handled.append(n))
    task.send_many(task.call(n) for n in range(200))
    make_suspects(app, 100)

    drain(app, max_batch=1)

    # Every fourth receive takes a suspect first.
    first = handled[:80]
    assert sum(n < 100 for n in first) == pytest.approx(20, abs=2)


def test_a_failed_suspect_is_an_ordinary_failure(app: QWorker) -> None:
    """A suspect whose handler raises is nacked as any other."""
    app.task(name="fail", retry=Retry.fixed("1m"))(_fail).send()
    make_suspects(app, 1)

    drain(app)

    assert history_of(app.queue("default"))["nacked"] == 1


def _fail() -> None:
    raise ValueError


def test_an_ack_goes_along_with_the_next_receive() -> None:
    """Of handlers that take longer than outcomes may wait, each is acked in the trip of the next receive."""
    handled: list[int] = []
    stack = contextlib.ExitStack()
    server = stack.enter_context(servers.start("valkey", far=False))  # counts nobody else's calls
    app = QWorker(url=server.url, namespace="alone")

    @app.task(name="slow", queue="slow")
    def slow(n: int) -> None:
        time.sleep(0.03)
        handled.append(n)

    with stack, redis_of(app) as redis:
        slow.send_many(slow.call(n) for n in range(20))
        before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        drain(app, queues=["slow"], max_batch=1)
        after = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        app.close()
    assert len(handled) == 20
    # Each with its receive; then an empty one, and what a burst asks for at its end.
    assert after - before <= 20 + 4


def test_an_ack_does_not_wait_for_a_slow_handler_of_another_queue(app: QWorker) -> None:
    """The next receive takes the outcomes of its own queue along; those of another go before the handler starts."""
    stored_when_slow_runs: list[int] = []
    first = app.queue("first")

    @app.task(name="quick", queue="first")
    def quick() -> None:
        time.sleep(0.03)

    @app.task(name="slow", queue="second")
    def slow() -> None:
        # The ack is on its way, and may be overtaken.
        with contextlib.suppress(AssertionError):
            until(lambda: not first.inspect().stored, 10)
        stored_when_slow_runs.append(first.inspect().stored)

    slow.send()
    quick.send()
    with running(app, queues=["first", "second"], max_batch=1) as child:
        until(lambda: stored_when_slow_runs)
        # Its reply is read although no receive went with it: a lease that stays on the board is room lost.
        until(lambda: not _held(child.board))
    assert stored_when_slow_runs == [0]


def test_no_handler_waits_for_the_reply_to_an_ack(
    app: QWorker, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acks of a batch are sent while its next handlers run, however far the server is."""
    monkeypatch.setattr(QueueState, "batch", lambda queue, slots: 10)
    handled: list[int] = []
    far: list[int] = []
    stack = contextlib.ExitStack()
    proxy = stack.enter_context(ChaosProxy(store_url))
    worker = QWorker(app.namespace, url=proxy.url)

    @worker.task(name="task", queue="q")
    def task(n: int) -> None:
        proxy.blackhole = n < 9
        time.sleep(0.025)  # longer than an outcome may wait
        handled.append(n)
        if proxy.blackhole:
            far.append(n)

    def heal() -> None:
        proxy.blackhole = False

    app.queue("q").send_all([{"task": "task", "args": [n]} for n in range(10)])
    rescue = threading.Timer(DEADLINE_S / 2, heal)
    with stack, running(worker):
        rescue.start()
        until(lambda: app.queue("q").inspect().stored == 0)
        rescue.cancel()
    worker.close()
    assert handled == [*range(10)]
    assert far == [*range(9)]
    assert history_of(app.queue("q"))["acked"] == 10


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
