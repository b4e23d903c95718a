"""When a child takes a suspect, which runs alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from qworker import QWorker, Retry
from qworker.wire.codec import encode_call
from qworker.wire.keys import QueueKeys
from tests.consumer.child.fetching import fail, make_suspects
from tests.consumer.driving import (
    DEADLINE_S,
    HEARD_S,
    drain,
    history_of,
    redis_of,
    running,
    until,
)
from tests.lua.drive import own
from tests.topologies.servers import CLUSTERED


def count_waits(redis: Any) -> int:
    """How many waits at doorbells the server has ended so far."""
    return int(redis.info("commandstats").get("cmdstat_blpop", {"calls": 0})["calls"])


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
        before = count_waits(redis)
        time.sleep(1.0)
        heard = count_waits(redis) - before
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


@pytest.mark.slow
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
    app.task(name="fail", retry=Retry.fixed("1m"))(fail).send()
    make_suspects(app, 1)

    drain(app)

    assert history_of(app.queue("default"))["nacked"] == 1
