"""Batch handlers: many messages in one call, each with its own end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from qworker import Bury, Context, Discard, Middleware, QWorker, Release, Retry
from tests.consumer.driving import drain, history_of, make_due, running, until


def test_a_batch_handler_gets_its_messages_in_lists(app: QWorker) -> None:
    """A batch task is called with lists of at most its size, in order, and every message is acked."""
    calls: list[list[int]] = []

    @app.task(batch=40)
    def load(numbers: list[int]) -> None:
        calls.append(list(numbers))

    load.send_many(load.call(n) for n in range(100))

    drain(app)

    assert [n for call in calls for n in call] == list(range(100))
    assert [len(call) for call in calls] == [40, 40, 20]
    assert history_of(app.queue("default"))["acked"] == 100


def test_an_async_batch_handler_gets_lists_too(app: QWorker) -> None:
    """A coroutine takes batches as a function does."""
    sizes = []

    @app.task(batch=10)
    async def load(items: list[str]) -> None:
        await asyncio.sleep(0)
        sizes.append(len(items))

    load.send_many(load.call(f"item {n}") for n in range(30))

    drain(app)

    assert sizes == [10, 10, 10]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_message_of_a_batch_ends_by_its_entry_in_the_result(
    app: QWorker, is_async: bool
) -> None:
    """A list as the result ends each message its own way: None is handled, an exception what it would be if raised."""
    ends = [None, Retry("1m"), Discard(), Bury("no"), Release("1m"), ValueError("x"), None]

    def load(numbers: list[int]) -> Any:
        return [ends[n] for n in numbers]

    async def aload(numbers: list[int]) -> Any:
        return load(numbers)

    task: Any = app.task(name="load", batch=10)(aload if is_async else load)
    task.send_many(task.call(n) for n in range(7))

    drain(app)

    counted = history_of(app.queue("default"))
    assert {
        name: counted[name] for name in ("acked", "discarded", "dead", "released", "nacked")
    } == {
        "acked": 2,
        "discarded": 1,
        "dead": 1,
        "released": 1,
        "nacked": 2,
    }


def test_what_a_batch_handler_raises_ends_all_of_its_messages(app: QWorker) -> None:
    """An error of the handler nacks every message of the call, and is logged once."""

    @app.task(batch=5, retry=Retry.fixed("1m"))
    def load(numbers: list[int]) -> None:
        raise LookupError

    load.send_many(load.call(n) for n in range(5))

    drain(app)

    assert history_of(app.queue("default"))["nacked"] == 5


@pytest.mark.parametrize("result", [[], [None], [None, None, None], "ab", {"a": 1}, 7, [1, 2]])
def test_a_result_that_fits_no_batch_is_a_failure_of_all(app: QWorker, result: object) -> None:
    """A batch handler that returns anything but None or an entry for each message has failed, and gets the reason."""

    @app.task(batch=2, max_receives=1)
    def load(numbers: list[int]) -> object:
        return result

    load.send_many(load.call(n) for n in range(2))

    drain(app)

    dead_letters = app.queue("default").dead()
    assert [dead_letter.error_class for dead_letter in dead_letters] == ["BatchResultError"] * 2
    assert "must return None, or a list of 2 entries" in dead_letters[0].error


def test_one_bad_message_does_not_spoil_its_batch(app: QWorker) -> None:
    """A message whose item does not fit is dead alone; the others of its batch are handled."""
    handled: list[int] = []

    @app.task(batch=10)
    def load(numbers: list[int]) -> None:
        handled.extend(numbers)

    load.send(1)
    app.queue("default").send({"task": "load", "args": ["two"]})
    load.send(3)

    drain(app)

    assert handled == [1, 3]
    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.reason == "bad_arguments"


def test_a_batch_waits_until_it_is_full(app: QWorker) -> None:
    """With max_wait a call waits for more messages, and does not wait longer once it has them all."""
    calls: list[int] = []

    @app.task(batch=4, max_wait="60s")
    def load(numbers: list[int]) -> None:
        calls.append(len(numbers))

    with running(app):
        for n in range(8):
            load.send(n)
            time.sleep(0.02)
        until(lambda: sum(calls) == 8)

    assert calls == [4, 4]


def test_a_batch_that_does_not_fill_up_starts_after_max_wait(app: QWorker) -> None:
    """A call starts with what there is when its first message has waited for max_wait."""
    calls: list[int] = []

    @app.task(batch=100, max_wait="150ms")
    async def load(numbers: list[int]) -> None:
        calls.append(len(numbers))

    begun = time.monotonic()
    with running(app):
        load.send_many([load.call(1), load.call(2)])
        until(lambda: calls)
    waited_s = time.monotonic() - begun

    assert calls == [2]
    assert waited_s > 0.14


def test_a_slow_batch_handler_gets_full_batches_all_the_same(app: QWorker) -> None:
    """Batches do not shrink because one call takes long: the size is the user's to choose."""
    calls: list[int] = []

    @app.task(batch=50)
    def load(numbers: list[int]) -> None:
        time.sleep(0.1)
        calls.append(len(numbers))

    load.send_many(load.call(n) for n in range(200))

    drain(app)

    assert calls == [50, 50, 50, 50]


def test_stopping_gives_an_unstarted_batch_back(app: QWorker) -> None:
    """Messages that wait for their batch when the worker stops are ready again, uncounted."""

    @app.task(batch=100, max_wait="60s")
    def load(numbers: list[int]) -> None:
        raise AssertionError

    load.send_many(load.call(n) for n in range(3))
    with running(app):
        until(lambda: app.queue("default").inspect().unacked == 3)

    seen = app.queue("default").inspect()
    assert (seen.ready, seen.unacked) == (3, 0)
    assert [message.receives for message in app.queue("default").peek()] == [0, 0, 0]


def test_batch_and_single_tasks_share_a_queue(app: QWorker) -> None:
    """Messages of batch tasks are collected, and those of other tasks between them run alone."""
    ran: list[object] = []

    @app.task(batch=10)
    def many(numbers: list[int]) -> None:
        ran.append(list(numbers))

    @app.task
    def one(n: int) -> None:
        ran.append(n)

    for n in range(3):
        many.send(n)
        one.send(n)

    drain(app)

    assert sorted(ran, key=str) == [0, 1, 2, [0, 1, 2]]


def test_a_batch_past_its_time_limit_is_cancelled_as_a_whole(app: QWorker) -> None:
    """The limit of an async batch handler is for the call; all of its messages are nacked."""

    @app.task(batch=3, time_limit="50ms", max_receives=1)
    async def hang(numbers: list[int]) -> None:
        await asyncio.sleep(60)

    hang.send_many(hang.call(n) for n in range(3))

    drain(app)

    assert [dead_letter.error_class for dead_letter in app.queue("default").dead()] == [
        "TimeLimitError"
    ] * 3


def test_middleware_runs_around_each_message_of_a_batch(app: QWorker) -> None:
    """`before` and `after` see every message of a batch; one that `before` refuses does not reach the handler."""
    seen = []

    class Refuse(Middleware):
        def before(self, context: Context) -> None:
            if b"13" in context.body:
                raise ValueError("unlucky")

        def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
            seen.append((outcome, type(error).__name__))

    app.use(Refuse())
    handled: list[int] = []

    @app.task(batch=10, retry=Retry.fixed("1m"))
    def load(numbers: list[int]) -> None:
        handled.extend(numbers)

    load.send_many(load.call(n) for n in (12, 13, 14))

    drain(app)

    assert handled == [12, 14]
    assert sorted(seen) == [("acked", "NoneType")] * 2 + [("nacked", "ValueError")]


def test_a_retried_message_joins_a_later_batch(app: QWorker) -> None:
    """A message that its batch handler sent back is in a batch again when it is due."""
    calls: list[list[int]] = []

    @app.task(batch=10, retry=Retry.fixed("1m"))
    def load(numbers: list[int]) -> Any:
        calls.append(list(numbers))
        return [Retry() if n == 1 and len(calls) == 1 else None for n in numbers]

    load.send_many(load.call(n) for n in range(3))
    drain(app)
    make_due(app)
    load.send(9)
    drain(app)

    assert calls[0] == [0, 1, 2]
    assert sorted(calls[1]) == [1, 9]
