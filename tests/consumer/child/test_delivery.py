"""What a handler and its middleware know of their message, and at most once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import dataclass

import pytest

from qworker import Context, Middleware, QWorker, Release, Retry, current
from qworker.consumer.board.board import Board
from qworker.consumer.board.states import Mark
from qworker.engine.scripts import load_script
from qworker.wire.leases import held_items
from tests.chaos import ChaosProxy
from tests.consumer.driving import (
    DEADLINE_S,
    drain,
    history_of,
    make_due,
    redis_of,
    running,
    until,
)
from tests.consumer.workers import Lab

#: How a call of the script that acks begins.
SETTLE = b"EVALSHA\r\n$40\r\n" + load_script("settle").sha.encode()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# -- context -----------------------------------------------------------------------------------


def test_the_context_describes_the_message_of_a_handler(app: QWorker) -> None:
    """Id, queue, task, attempts and time are at hand, and counted on with each delivery."""
    seen: list[Context] = []

    @app.task(queue="mail", retry=Retry.fixed("1m"))
    def look(n: int) -> None:
        context = current()
        assert context is not None
        seen.append(context)
        if len(seen) == 1:
            raise Release("1m")
        if len(seen) == 2:
            raise ValueError

    message_id = look.send(7)
    for _ in range(3):
        drain(app)
        make_due(app, "mail")

    assert [(c.queue, c.task, c.message_id, c.lost) for c in seen] == [
        ("mail", "look", message_id, False)
    ] * 3
    assert [c.body for c in seen] == [b'{"task":"look","args":[7]}'] * 3
    # A release is not an attempt that counts against max receives, but it was a delivery; a failure is both.
    assert [(c.receive_count, c.attempt, c.nacks) for c in seen] == [
        (1, 1, 0),
        (2, 1, 0),
        (3, 2, 1),
    ]


def test_the_context_says_when_the_lease_is_lost(app: QWorker) -> None:
    """A sync handler cannot be cancelled, but it can ask whether its lease has run out."""
    seen = []
    lost = threading.Event()

    @app.task
    def look() -> None:
        context = current()
        assert context is not None
        before = context.lost
        assert lost.wait(60)
        seen.append((before, context.lost))

    look.send()
    with running(app, concurrency=2) as child:
        until(child.board.running.views)
        child.board.leases.lose(child.board.running.views()[0].lease)
        lost.set()
        until(lambda: seen)

    assert seen == [(False, True)]


def test_trace_context_is_carried_from_the_sender_to_sends_of_the_handler(app: QWorker) -> None:
    """A message sent inside a handler carries on the trace of the handler's own message."""
    seen = []

    class Trace(Middleware):
        def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
            if task == "first":
                flags["w"] = TRACE

    app.use(Trace())

    @app.task
    def first() -> None:
        second.send()

    @app.task
    def second() -> None:
        context = current()
        assert context is not None
        seen.append(context.trace)

    first.send()

    drain(app)

    assert seen == [TRACE]


# -- middleware --------------------------------------------------------------------------------


def test_middleware_runs_around_handlers_like_layers(app: QWorker) -> None:
    """`before` runs in the order of registration, `after` in the reverse, with outcome and error."""
    seen: list[object] = []

    class Layer(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, context: Context) -> None:
            seen.append((self.name, "before", context.task))

        def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
            seen.append((self.name, outcome, type(error).__name__))

    app.use(Layer("outer"))
    app.use(Layer("inner"))

    @app.task(retry=Retry.fixed("1m"))
    def handle(n: int) -> None:
        seen.append(n)
        if n:
            raise ValueError

    handle.send(0)
    handle.send(1)

    drain(app)

    assert seen == [
        *(("outer", "before", "handle"), ("inner", "before", "handle"), 0),
        *(("inner", "acked", "NoneType"), ("outer", "acked", "NoneType")),
        *(("outer", "before", "handle"), ("inner", "before", "handle"), 1),
        *(("inner", "nacked", "ValueError"), ("outer", "nacked", "ValueError")),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_that_raises_before_is_the_handlers_failure(
    app: QWorker, is_async: bool
) -> None:
    """An exception in `before` keeps the handler from running and nacks the message."""
    ran = []

    class Refuse(Middleware):
        def before(self, context: Context) -> None:
            raise PermissionError

    app.use(Refuse())

    def handle() -> None:
        ran.append(1)

    async def ahandle() -> None:
        ran.append(1)

    app.task(name="handle", retry=Retry.fixed("1m"))(ahandle if is_async else handle).send()

    drain(app)

    assert not ran
    assert history_of(app.queue("default"))["nacked"] == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(2), KeyboardInterrupt()])
def test_middleware_that_raises_after_changes_nothing(app: QWorker, error: BaseException) -> None:
    """What has ended has ended, whatever `after` raises."""

    class Stumble(Middleware):
        def after(self, context: Context, outcome: str, problem: BaseException | None) -> None:
            raise error

    app.use(Stumble())
    app.task(name="handle")(lambda: None).send()

    drain(app)

    assert history_of(app.queue("default"))["acked"] == 1


# -- at most once ------------------------------------------------------------------------------


def test_at_most_once_is_acked_before_it_starts(app: QWorker) -> None:
    """The message is gone from the server when its handler begins, so a crash cannot bring it back."""
    seen = []

    @app.task(at_most_once=True)
    def fragile(n: int) -> None:
        seen.append(app.queue("default").inspect().stored)

    fragile.send(1)

    drain(app)

    assert seen == [0]
    assert history_of(app.queue("default")) == {"acked": 1, "received": 1, "sent": 1}


def test_at_most_once_is_not_retried(app: QWorker) -> None:
    """A failure of an at-most-once message is logged and leads to nothing."""
    started = []

    @app.task(at_most_once=True, retry=Retry.fixed(0))
    def fragile() -> None:
        started.append(1)
        raise ValueError

    fragile.send()

    drain(app)

    assert started == [1]
    assert history_of(app.queue("default")) == {"acked": 1, "received": 1, "sent": 1}


@pytest.mark.slow
def test_at_most_once_goes_back_if_it_waits_for_a_slot_when_its_child_stops(app: QWorker) -> None:
    """Only what has started was acked; the child ends when that has ended, and waits for nothing else."""
    gate, blocked, started = threading.Event(), list[int](), list[int]()

    @app.task(at_most_once=True)
    def fragile(n: int) -> None:
        started.append(n)
        if n >= 500:  # fast ones before them let it receive many at a time
            blocked.append(n)
            gate.wait(DEADLINE_S)

    fragile.send_many(fragile.call(n) for n in range(1000))
    with running(app, concurrency=2) as child:
        dispatcher = child.broker._dispatcher
        until(lambda: len(blocked) == 2 and dispatcher._waiting[0])
        child.broker.stop("test")
        gate.set()
    seen = app.queue("default").inspect()
    assert (seen.ready, seen.unacked) == (1000 - len(started), 0)
    assert seen.stats["acked"] == len(started)


def test_both_guarantees_in_one_queue(app: QWorker) -> None:
    """At-most-once and at-least-once messages may share a queue; each keeps its own promise."""
    started: list[str] = []

    @app.task(at_most_once=True)
    def once(n: int) -> None:
        started.append(f"once {n}")
        raise ValueError

    @app.task(retry=Retry.fixed("1m"))
    def again(n: int) -> None:
        started.append(f"again {n}")
        raise ValueError

    for n in range(3):
        once.send(n)
        again.send(n)

    drain(app)

    assert len(started) == 6
    counted = history_of(app.queue("default"))
    assert (counted["acked"], counted["nacked"], counted["stored"]) == (3, 3, 3)


@pytest.mark.slow
def test_acks_before_a_start_whose_reply_was_lost_are_named(
    app: QWorker, logs: list[dict[str, object]]
) -> None:
    """The ack may have counted, so its message does not start: the log says which ones to look for."""
    started: list[int] = []
    with ChaosProxy(app.url) as proxy, closing(QWorker(app.namespace, url=proxy.url)) as far:

        @far.task(at_most_once=True)
        def once(n: int) -> None:
            started.append(n)

        sent = once.send_many(once.call(n) for n in range(3))
        proxy.cut_next_reply(of=SETTLE)
        board = drain(far, concurrency=1)

    (line,) = [line for line in logs if line["event"] == "acks_in_doubt"]
    assert line["message_ids"] == [sent[0]]
    assert started == [1, 2]
    assert board.stale == 1


def test_at_most_once_starts_only_its_own_messages(app: QWorker) -> None:
    """A message whose ack did not count, because a reaper had its lease by then, is not started."""
    started = []

    @dataclass
    class Thief:
        """Takes the third message away while the second one is decoded."""

        n: int

        def __post_init__(self) -> None:
            if self.n == 1 and armed:
                with redis_of(app) as redis:
                    for key in redis.scan_iter(f"{app.namespace}:*lease:*"):
                        held = dict(
                            held_items(
                                [part for pair in redis.hgetall(key).items() for part in pair]
                            )
                        )
                        del held[b"3"]
                        redis.delete(key)
                        redis.hset(key, mapping=held)

    armed = False

    def once(thief: Thief) -> None:
        started.append(thief.n)

    once.__annotations__["thief"] = Thief
    task = app.task(at_most_once=True)(once)
    task.send_many(task.call(Thief(n)) for n in range(3))
    armed = True

    drain(app, concurrency=3)

    assert sorted(started) == [0, 1]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.slow
def test_no_more_is_acked_than_starts(app: QWorker, concurrency: int) -> None:
    """Whatever was received: should its process die now, at most once loses what runs and nothing else."""
    ahead: list[int] = []
    begun = iter(range(1, 1000))
    started = 0
    lock = threading.Lock()

    @app.task(at_most_once=True)
    def once(n: int) -> None:
        nonlocal started
        with lock:
            started = next(begun)
            ahead.append(app.queue("default").inspect().stats["acked"] - started)

    once.send_many(once.call(n) for n in range(200))
    drain(app, concurrency=concurrency)

    assert len(ahead) == 200
    assert max(ahead) < concurrency


def test_a_queue_of_at_most_once_learns_its_pace(app: QWorker) -> None:
    """Such messages are received many at a time as well, and the acks of threads go in one trip."""
    task = app.task(name="once", at_most_once=True)(lambda n: None)
    task.send_many(task.call(n) for n in range(600))
    with redis_of(app) as redis:
        before = redis.info("stats")["total_reads_processed"]
        drain(app, concurrency=8)
        assert redis.info("stats")["total_reads_processed"] - before < 500
    assert history_of(app.queue("default"))["acked"] == 600


def test_a_message_that_waits_for_its_ack_keeps_its_turn(app: QWorker) -> None:
    """At most once and at least once in one queue run in the order of their sends."""
    started: list[int] = []
    once = app.task(name="once", at_most_once=True)(lambda n: started.append(n))
    often = app.task(name="often")(lambda n: started.append(n))
    for n in range(60):
        (once if n % 3 == 0 else often).send(n)

    drain(app)

    assert started == list(range(60))


def test_a_middleware_gets_the_time_limit_error_of_a_coroutine(app: QWorker) -> None:
    """A coroutine that its time limit has cut off ends with its own outcome, and with the error that says so."""
    seen: list[tuple[str, str]] = []

    class Watching(Middleware):
        def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
            seen.append((outcome, type(error).__name__))

    app.use(Watching())

    @app.task(time_limit="50ms", max_receives=1)
    async def hang() -> None:
        await asyncio.sleep(60)

    hang.send()

    drain(app)

    assert seen == [("time_limit", "TimeLimitError")]


@pytest.mark.slow
def test_a_middleware_knows_of_a_handler_that_was_cut_off_at_the_next_delivery(lab: Lab) -> None:
    """No hook runs in a process that a time limit has ended; the next `before` sees that there was a timeout."""
    lab.app("""
from qworker import Middleware, Retry

class Watching(Middleware):
    def before(self, context):
        note("before", context.timeouts)

    def after(self, context, outcome, error):
        note("after", outcome)

app.use(Watching())

@app.task(time_limit=0.2, retry=Retry.fixed(0.01), max_receives=2)
def hang() -> None:
    if current().timeouts == 0:
        time.sleep(60)
""")
    lab.send("hang")
    with lab.worker("--procs", "1"):
        until(lambda: lab.noted("after"))
    assert lab.noted("before") == [[0], [1]]
    assert lab.noted("after") == [["acked"]]


@pytest.mark.slow
def test_a_time_limit_costs_at_most_once_only_the_message_that_exceeded_it(lab: Lab) -> None:
    """What was received along with it was not acked: it goes back, and runs."""
    lab.app("""
@app.task(at_most_once=True, time_limit="1s")
def once(n: int) -> None:
    if n == 20:
        time.sleep(30)
    note("ran", n)
""")
    lab.send_many("once", 200)
    with lab.worker("--procs", "1"):
        until(lambda: len(lab.noted("ran")) == 199)
    assert sorted(n for [n] in lab.noted("ran")) == [n for n in range(200) if n != 20]
    assert lab.sender.queue("default").inspect().stored == 0


def test_what_was_acked_before_its_start_still_runs_when_the_worker_stops(app: QWorker) -> None:
    """A stop between ack and start loses nothing: what was acked runs within the grace time."""
    started: list[int] = []
    gate = threading.Event()

    @app.task(at_most_once=True)
    def once(n: int) -> None:
        if not started:
            started.append(n)
            assert gate.wait(60)
        else:
            started.append(n)

    # The pace has to be known before more than one is taken at a time.
    once.send_many(once.call(n) for n in range(50))
    with running(app, concurrency=4, max_batch=50) as child:
        until(lambda: started)
        for lease in child.board.leases.views():
            child.board.leases.recall(lease.slot)
        child.broker.stop("test")
        gate.set()

    seen = app.queue("default").inspect()
    assert len(started) + seen.ready == 50
    assert seen.stats["acked"] == len(started)


# -- the mark ----------------------------------------------------------------------------------


def test_a_message_is_marked_before_it_is_decoded(app: QWorker) -> None:
    """The board says RUNNING while the arguments are decoded: a crash in there has its culprit."""
    marks = []
    boards: list[Board] = []

    @dataclass
    class Look:
        n: int

        def __post_init__(self) -> None:
            for board in boards:
                (lease,) = board.leases.views()
                marks.append(Mark(lease.marks[0]))

    def look(argument: Look) -> None: ...

    look.__annotations__["argument"] = Look
    task = app.task(look)
    task.send(Look(1))
    app.queue("default").pause("out")
    with running(app) as child:
        boards.append(child.board)
        app.queue("default").resume()
        until(lambda: marks)

    assert marks == [Mark.RUNNING]
