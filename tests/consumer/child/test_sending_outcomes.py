"""How outcomes reach the server: along with receives, again after a refusal, never twice."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from qworker import Bury, QWorker, Retry
from qworker.client.queue import Queue
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.child.fetching import count_unacked, held_leases
from tests.consumer.driving import (
    DEADLINE_S,
    drain,
    history_of,
    redis_of,
    running,
    until,
)


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
        assert app.client.execute(count_unacked(app)) == 1
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
            until(lambda: not held_leases(child.board))
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
            until(lambda: not held_leases(child.board))
        assert sorted(handled) == [0, 1, 2]
        assert history_of(app.queue("default"))["acked"] == 3
        app.close()


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
        until(lambda: not held_leases(child.board))
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

    app.queue("q").send_many([{"task": "task", "args": [n]} for n in range(10)])
    rescue = threading.Timer(DEADLINE_S / 2, heal)
    with stack, running(worker):
        rescue.start()
        until(lambda: app.queue("q").inspect().stored == 0)
        rescue.cancel()
    worker.close()
    assert handled == [*range(10)]
    assert far == [*range(9)]
    assert history_of(app.queue("q"))["acked"] == 10
