"""Where handlers run: inline, in threads, on a loop, both at once; and what handlers do to these places."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from qworker import QueueAttributes, QWorker, Retry, current
from qworker.consumer.board.clock import boot_time
from qworker.consumer.child.loop import Broker
from tests.consumer.driving import (
    DEADLINE_S,
    HEARD_S,
    drain,
    history_of,
    redis_of,
    running,
    until,
)


def test_sync_handlers_run_in_order_one_at_a_time(app: QWorker) -> None:
    """With one sync handler at a time, messages are handled in the order of their sends, all in one thread."""
    handled: list[int] = []
    threads = set()

    @app.task
    def handle(n: int) -> None:
        handled.append(n)
        threads.add(threading.get_ident())

    handle.send_many(handle.call(n) for n in range(2500))

    drain(app)

    assert handled == list(range(2500))
    assert len(threads) == 1
    assert history_of(app.queue("default"))["acked"] == 2500


@pytest.mark.slow
def test_nothing_starts_after_a_wait_that_outlasted_its_lease(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that waits for a server between two messages, frozen or cut off, looks at the clock again after it."""
    handled: list[int] = []
    app.queue("default").configure(QueueAttributes(visibility="1s"))

    @app.task
    def handle(n: int) -> None:
        handled.append(n)

    between = Broker._between

    def stand_still(broker: Broker, begun: float, now: float, **given: bool) -> float:
        while len(handled) == 2 and boot_time() < now + 1.0:
            time.sleep(0.01)
        return between(broker, begun, now, **given)

    monkeypatch.setattr(Broker, "_between", stand_still)
    # The first comes alone, for the pace is not known yet; the others share a lease.
    handle.send_many(handle.call(n) for n in range(4))

    drain(app)

    # They were not reaped in between, so they could be given back, and came again.
    assert history_of(app.queue("default"))["released"] == 2
    assert sorted(handled) == [0, 1, 2, 3]


def test_concurrency_is_the_number_of_threads_for_sync_handlers(app: QWorker) -> None:
    """With concurrency 4 four sync handlers run at once, and no fifth."""
    gate, lock = threading.Barrier(4), threading.Lock()
    at_once, most = 0, 0

    @app.task
    def handle(n: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        gate.wait(DEADLINE_S)
        with lock:
            at_once -= 1

    handle.send_many(handle.call(n) for n in range(12))

    drain(app, concurrency=4)

    assert most == 4
    assert history_of(app.queue("default"))["acked"] == 12


def test_async_handlers_run_a_hundred_at_a_time(app: QWorker) -> None:
    """Unless said otherwise 100 coroutines run at once, and no more."""
    at_once, most = 0, 0
    all_run = asyncio.Event()

    @app.task
    async def handle(n: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 100:
            all_run.set()
        await all_run.wait()
        await asyncio.sleep(0.001)  # for a hundred and first to start
        at_once -= 1

    handle.send_many(handle.call(n) for n in range(400))

    drain(app)

    assert most == 100
    assert history_of(app.queue("default"))["acked"] == 400


def test_an_app_may_have_sync_and_async_tasks_on_one_queue(app: QWorker) -> None:
    """In a mixed app each handler runs where it belongs, and a blocked sync one does not hold up the others."""
    blocked, ran = threading.Event(), threading.Event()

    @app.task
    def block() -> None:
        assert blocked.wait(DEADLINE_S)

    @app.task
    async def go() -> None:
        await asyncio.sleep(0)
        ran.set()

    block.send()
    with running(app) as child:
        until(child.board.running.views)
        go.send()
        assert ran.wait(DEADLINE_S)
        blocked.set()
        until(lambda: app.queue("default").inspect().stored == 0)

    assert history_of(app.queue("default"))["acked"] == 2


def test_a_message_beside_a_running_one_is_received_at_once(
    app: QWorker, only_bells: dict[str, int]
) -> None:
    """While a handler is busy and another slot is free, a new message does not wait for the first to end."""
    release = threading.Event()
    seen: set[int] = set()

    @app.task
    def handle(n: int) -> None:
        seen.add(n)
        if n == 0:
            release.wait(DEADLINE_S)

    with running(app, concurrency=2, **only_bells) as child:
        handle.send(0)
        until(lambda: 0 in seen and child.waiting)
        handle.send(1)
        until(lambda: 1 in seen, HEARD_S)
        release.set()


# -- what handlers do to the loop --------------------------------------------------------------


def test_a_coroutine_may_cancel_itself_and_all_others(app: QWorker) -> None:
    """A handler that cancels every task of the loop fails those that run; the next messages are handled."""
    handled = []

    @app.task(retry=Retry.fixed("1m"))
    async def cancel() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(5)

    @app.task
    async def handle(n: int) -> None:
        await asyncio.sleep(0)
        handled.append(n)

    with running(app, concurrency=3):
        for n in range(5):
            handle.send(n)
            until(lambda n=n: n in handled)
            cancel.send()
            until(lambda n=n: app.queue("default").inspect().delayed == n + 1)
        handle.send_many(handle.call(n) for n in range(5, 30))
        until(lambda: len(handled) == 30)


@dataclass
class Order:
    """Looks at the message that it is made for."""

    number: int

    def __post_init__(self) -> None:
        current()


def test_types_that_read_the_message_do_not_change_it_for_its_handler(app: QWorker) -> None:
    """While an argument is made the task may not be known yet; the handler knows it anyway."""
    seen = []

    @app.task(name="place")
    async def place(order: Order) -> None:
        context = current()
        seen.append((context.task, context.message_id) if context else None)

    ids = [place.send(Order(number)) for number in range(3)]

    drain(app)

    assert seen == [("place", message_id) for message_id in ids]


def test_a_task_left_behind_that_exits_does_not_end_the_loop(app: QWorker) -> None:
    """SystemExit in a task that a handler has started and left ends the loop's run; it continues."""
    handled = []

    @app.task
    async def leave() -> None:
        async def exit_later() -> None:
            raise SystemExit(3)

        asyncio.get_running_loop().create_task(exit_later())

    @app.task
    async def handle(n: int) -> None:
        await asyncio.sleep(0)
        handled.append(n)

    with running(app):
        for n in range(3):
            leave.send()
            handle.send(n)
        until(lambda: len(handled) == 3)


def test_a_handler_that_stops_the_loop_does_not_stop_the_worker(app: QWorker) -> None:
    """`loop.stop()` in a handler is survived."""
    handled = []

    @app.task
    async def stop(n: int) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        handled.append(n)

    with running(app):
        for n in range(3):
            stop.send(n)
        until(lambda: len(handled) == 3)


def test_an_async_handler_past_its_time_limit_is_cancelled(app: QWorker) -> None:
    """A coroutine past its limit is cancelled where it waits and may clean up; its message is nacked with the place."""
    cleaned = []

    @app.task(time_limit="50ms", max_receives=1)
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(1)

    hang.send()
    begun = time.monotonic()

    drain(app)

    assert time.monotonic() - begun < 30
    assert cleaned == [1]
    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.error_class == "TimeLimitError"
    assert "asyncio.sleep(60)" in dead_letter.error


def test_a_coroutine_that_answers_its_cancellation_in_time_is_handled(app: QWorker) -> None:
    """What returns although it was cancelled for its time limit has done its work."""

    @app.task(time_limit="50ms")
    async def hurry() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    hurry.send()

    drain(app)

    assert history_of(app.queue("default"))["acked"] == 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_cancelled_handler_leaves_no_cancellation_to_the_next(
    app: QWorker, concurrency: int
) -> None:
    """A message that runs in the place of a cancelled one is not cancelled with it."""
    handled = []

    @app.task(time_limit="30ms", retry=Retry.fixed("1m"))
    async def hang() -> None:
        await asyncio.sleep(60)

    @app.task
    async def handle(n: int) -> None:
        await asyncio.sleep(0)
        handled.append(n)

    hang.send_many([hang.call()] * 5)
    handle.send_many(handle.call(n) for n in range(5))

    drain(app, concurrency=concurrency)

    assert sorted(handled) == [0, 1, 2, 3, 4]
    assert app.queue("default").inspect().delayed == 5


def test_current_is_the_message_of_this_thread_or_coroutine(app: QWorker) -> None:
    """`current()` names the message that runs here, however many run beside it; outside of handlers it is None."""
    seen = []

    @app.task
    async def look(n: int) -> None:
        before = current()
        await asyncio.sleep(0.01)
        after = current()
        assert before is not None
        assert before is after
        seen.append((n, before.message_id))

    ids = look.send_many(look.call(n) for n in range(50))

    drain(app)

    assert sorted(seen) == list(enumerate(ids))
    assert current() is None


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_handler_is_in_no_message(app: QWorker, is_async: bool) -> None:
    """A batch handler stands for many messages, also where it runs right after the handler of a single one."""
    seen: list[object] = []

    def one(n: int) -> None:
        seen.append(current() is None)

    def many(numbers: list[int]) -> None:
        seen.append(current() is None)

    async def aone(n: int) -> None:
        one(n)

    async def amany(numbers: list[int]) -> None:
        many(numbers)

    single = app.task(name="one")(aone if is_async else one)
    batch = app.task(name="many", batch=10)(amany if is_async else many)
    for n in range(3):
        single.send(n)
        batch.send(n)

    drain(app, concurrency=1)

    assert seen.count(False) == 3
    assert seen.count(True) == len(seen) - 3 >= 1


# -- what is awaited ---------------------------------------------------------------------------


def test_a_decorator_that_hands_a_coroutine_on_makes_no_handler_slow(app: QWorker) -> None:
    """A plain decorator with `wraps` around `async def`: after its first call it runs as async, a hundred at a time."""
    at_once, most = 0, 0
    all_run = asyncio.Event()

    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    @app.task
    @counted
    async def handle(n: int) -> None:
        nonlocal at_once, most
        if n < 0:
            return
        at_once += 1
        most = max(most, at_once)
        if at_once == 50:
            all_run.set()
        await all_run.wait()
        at_once -= 1

    handle.send(-1)
    with running(app):
        until(lambda: app.queue("default").inspect().stored == 0)
        handle.send_many(handle.call(n) for n in range(100))
        until(lambda: app.queue("default").inspect().stored == 0)

    assert most >= 50
    assert history_of(app.queue("default"))["acked"] == 101


def test_what_is_awaited_for_plain_functions_shares_one_loop(
    app: QWorker, logs: list[dict[str, object]]
) -> None:
    """Coroutines of plain functions run on one loop, that of the async handlers, and are logged once per task."""
    loops = set()

    async def work(n: int) -> None:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        assert current() is not None

    app.task(name="plain")(lambda n: work(n))
    task = app.task(name="async")(work)
    for n in range(3):
        app.tasks["plain"].send(n)
        task.send(n)

    drain(app, concurrency=2)

    assert len(loops) == 1
    assert history_of(app.queue("default"))["acked"] == 6
    assert [line["task"] for line in logs if line["event"] == "awaitable_returned"] == ["plain"]


def test_a_coroutine_of_a_plain_function_may_exit(app: QWorker) -> None:
    """SystemExit in what is awaited for a plain function is its failure; the loop continues."""

    async def leave(n: int) -> None:
        if n == 0:
            sys.exit(1)

    task = app.task(name="task", max_receives=1)(lambda n: leave(n))
    task.send(0)
    task.send(1)

    drain(app)

    stats = history_of(app.queue("default"))
    assert (stats["acked"], stats["dead"]) == (1, 1)


# -- what is thrown in from outside ------------------------------------------------------------


class LateError(Exception):
    """Raised in a thread by another one."""


def test_an_error_thrown_into_an_idle_thread_does_not_end_it(
    app: QWorker, logs: list[dict[str, object]]
) -> None:
    """A library's time-out that comes after its handler has ended costs nothing but a line in the log."""
    handled: list[int] = []
    both = threading.Barrier(2)

    @app.task
    def handle(n: int) -> None:
        if n in (1, 2):
            both.wait(DEADLINE_S)
        handled.append(n)

    with running(app, concurrency=2):
        handle.send(0)
        until(lambda: app.queue("default").inspect().stored == 0)
        for thread in app_threads():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(LateError)
            )
        handle.send_many(handle.call(n) for n in range(1, 20))
        until(lambda: app.queue("default").inspect().stored == 0)

    assert sum(line["event"] == "handler_slot_broken" for line in logs) == 2
    assert sorted(handled) == list(range(20))


def app_threads() -> list[int]:
    """The threads that run sync handlers."""
    threads = threading.enumerate()
    return [
        thread.ident
        for thread in threads
        if thread.name.startswith("qworker-handler-") and thread.ident
    ]


# -- the application's own logging -------------------------------------------------------------


class BrokenLogger:
    """A logger that raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"no {name}")


class AsyncLogger(structlog.BoundLogger):
    """A logger whose methods are coroutines."""

    async def warning(self, event: str, **fields: Any) -> None:  # type: ignore[override]
        raise AssertionError("never awaited")


def test_an_earlier_timeout_counts_where_the_log_says_whether_it_was_the_last_try(
    app: QWorker,
) -> None:
    """The line about a failure says that the message is dead, and it is counted as buried."""

    @app.task(max_receives=2)
    def fail() -> None:
        raise ValueError

    queue = app.queue("default")
    fail.send()
    queue.receive()
    with redis_of(app) as redis:
        redis.zadd(queue.keys.unacked, dict.fromkeys(redis.zrange(queue.keys.unacked, 0, -1), 1))
    queue.reap()

    with capture_logs() as lines:
        drain(app, concurrency=1)

    assert [line["dead"] for line in lines if line["event"] == "message_failed"] == [True]
    assert queue.inspect().dead == 1


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", ["broken", "async"])
def test_a_logger_that_cannot_log_does_not_end_a_slot(
    app: QWorker, kind: str, concurrency: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a logger that raises or is async messages get their outcomes, and stderr says what was not logged."""

    @app.task(max_receives=1)
    def fail(n: int) -> None:
        raise ValueError(n)

    @app.task(max_receives=1)
    async def afail(n: int) -> None:
        raise ValueError(n)

    for n in range(5):
        fail.send(n)
        afail.send(n)
    if kind == "broken":
        structlog.configure(logger_factory=lambda *_: BrokenLogger())
    else:
        structlog.configure(wrapper_class=AsyncLogger)

    drain(app, concurrency=concurrency)

    assert app.queue("default").inspect().dead == 10
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    failures = [line for line in lines if line["event"] == "message_failed"]
    assert len(failures) == 10
    assert {line["log_problem"] for line in failures} == {
        "SystemExit" if kind == "broken" else "the configured logger is asynchronous"
    }
