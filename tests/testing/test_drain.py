"""`drain`: messages run in this process as in a worker, until none is left."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qworker import (
    Bury,
    Discard,
    InvalidOptionError,
    LetExpire,
    Middleware,
    QueueAttributes,
    QWorker,
    Release,
    Retry,
    SyncRun,
    current,
)
from qworker.durations import duration_ms
from qworker.testing import advance, drain
from qworker.wire.keyring import Keyring


def test_messages_are_handled_in_this_thread_in_order(app):
    seen = []

    @app.task
    def greet(name: str) -> None:
        seen.append((name, threading.current_thread()))

    for name in "abc":
        greet.send(name)
    assert drain(app).handled == 3
    assert seen == [(name, threading.current_thread()) for name in "abc"]
    assert drain(app).handled == 0


def test_coroutines_have_closed_their_connections_when_it_returns(app, monkeypatch):
    """A test goes on with another server: what handlers opened on their loop is gone by then."""
    closed = []
    aclose = app.aclose

    async def slowly() -> None:
        await asyncio.sleep(0.2)
        await aclose()
        closed.append(threading.current_thread().name)

    monkeypatch.setattr(app, "aclose", slowly)

    @app.task
    async def second(number: int) -> None: ...

    @app.task
    async def first(number: int) -> None:
        await second.asend(number)

    first.send(1)
    assert drain(app, max_messages=1).handled == 1
    assert set(closed) == {"qworker-loop"}
    assert not app._async


def test_messages_that_handlers_send_are_handled_too(app):
    done = []

    @app.task(queue="second")
    def second(number: int) -> None:
        done.append(number)

    @app.task(queue="first")
    def first(number: int) -> None:
        second.send(number + 1)

    first.send(1)
    assert drain(app).handled == 2
    assert done == [2]


def test_an_error_of_a_handler_is_raised_unchanged(app):
    @app.task
    def fail() -> None:
        raise KeyError("here")

    fail.send()
    with pytest.raises(KeyError, match="here") as raised:
        drain(app)
    assert raised.traceback[-1].name == "fail"
    assert app.queue("default").inspect().stats["nacked"] == 1


def test_nothing_runs_after_an_error_that_is_raised(app):
    ran = []

    @app.task
    def fail(number: int) -> None:
        ran.append(number)
        raise ValueError(number)

    fail.send_many(fail.call(number) for number in range(3))
    with pytest.raises(ValueError, match="0"):
        drain(app)
    assert ran == [0]
    assert app.queue("default").inspect().ready == 2


def test_collected_errors_come_with_every_retry_until_the_message_is_dead(app):
    @app.task(max_receives=3, retry=Retry.intervals("10s", "1m"))
    def fail() -> None:
        raise ValueError("always")

    fail.send()
    drained = drain(app, errors="collect")
    assert (drained.handled, drained.failed, len(drained.dead), drained.left) == (0, 3, 1, 0)
    assert [str(error) for error in drained.errors] == ["always"] * 3
    assert drained.dead[0].reason == "max_receives"
    assert drained.dead[0].error_class == "ValueError"
    assert 69_000 < _ms(drained.waited) <= 70_000


def test_a_handler_that_succeeds_at_the_second_try_counts_as_failed_and_handled(app):
    attempts = []

    @app.task
    def flaky() -> None:
        attempts.append(current().attempt)
        if len(attempts) == 1:
            raise OSError

    flaky.send()
    drained = drain(app, errors="collect")
    assert (drained.handled, drained.failed, attempts) == (1, 1, [1, 2])


def test_control_flow_is_not_an_error(app):
    turns = []

    @app.task(retry=Retry.fixed("1s"))
    def turn(number: int) -> None:
        turns.append(number)
        if turns.count(number) == 1:
            raise (Retry("5s"), Discard("enough"), Bury("bad"), Release("1m"))[number]

    turn.send_many(turn.call(number) for number in range(4))
    drained = drain(app)
    assert turns == [0, 1, 2, 3, 0, 3]
    assert (drained.handled, drained.failed, drained.discarded, drained.released) == (2, 1, 1, 1)
    assert [dead_letter.reason for dead_letter in drained.dead] == ["rejected"]
    assert drained.errors == []


def test_delayed_messages_stay_without_include_delayed(app):
    @app.task
    def later() -> None: ...

    later.send_later("10m")
    later.send()
    drained = drain(app, include_delayed=False)
    assert (drained.handled, drained.left, drained.waited) == (1, 1, "0s")


def test_delayed_messages_run_in_the_order_of_their_due_times_over_all_queues(app):
    order = []

    @app.task(queue="a")
    def one(name: str) -> None:
        order.append(name)

    @app.task(queue="b")
    def two(name: str) -> None:
        order.append(name)

    one.send_later("30m", "a30")
    two.send_later("10m", "b10")
    one.send_later("20m", "a20")
    drained = drain(app)
    assert order == ["b10", "a20", "a30"]
    assert 29 * 60_000 < _ms(drained.waited) <= 30 * 60_000


def test_only_the_named_queues_are_drained(app):
    @app.task(queue="a")
    def one() -> None: ...

    @app.task(queue="b")
    def two() -> None: ...

    one.send()
    two.send()
    assert drain(app, queues=["b"]).handled == 1
    assert app.queue("a").inspect().ready == 1


def test_a_handler_that_sends_itself_ends_at_max_messages(app):
    @app.task
    def again() -> None:
        again.send()

    again.send()
    drained = drain(app, max_messages=7)
    assert (drained.handled, drained.left) == (7, 1)


def test_an_incomplete_batch_does_not_wait(app):
    batches = []

    @app.task(batch=4, max_wait="1m")
    def add(numbers: list[int]) -> list[Exception | None]:
        batches.append(numbers)
        return [ValueError(n) if n == 5 and len(batches) < 3 else None for n in numbers]

    add.send_many(add.call(n) for n in range(6))
    drained = drain(app, errors="collect")
    assert sorted(map(len, batches)) == [1, 2, 4]
    assert (drained.handled, drained.failed) == (6, 1)
    assert [str(error) for error in drained.errors] == ["5"]


def test_an_error_of_a_whole_batch_is_collected_once(app):
    @app.task(batch=3, max_receives=1)
    def fail(numbers: list[int]) -> None:
        raise ValueError("all of them")

    fail.send_many(fail.call(n) for n in range(3))
    drained = drain(app, errors="collect")
    assert len(drained.dead) == 3
    assert len(drained.errors) == 1


def test_async_handlers_run_on_a_loop(app):
    threads = set()

    @app.task
    async def greet(name: str) -> None:
        threads.add(threading.current_thread())

    @app.task
    async def fail() -> None:
        raise KeyError

    greet.send("a")
    greet.send("b")
    assert drain(app).handled == 2
    assert threads != {threading.current_thread()}
    fail.send()
    with pytest.raises(KeyError):
        drain(app)


def test_sync_and_async_handlers_of_one_app_both_run(app):
    @app.task
    def one() -> None: ...

    @app.task
    async def two() -> None: ...

    one.send()
    two.send()
    assert drain(app).handled == 2


def test_bad_arguments_and_foreign_items_are_dead_with_their_reason(app):
    @app.task(queue="q")
    def greet(name: str) -> None: ...

    app.queue("q").send({"task": "greet", "args": [42]})
    with app.client.factory.redis() as redis:
        redis.rpush(app.queue("q").keys.ready[0], "hello")
    reasons = [dead_letter.reason for dead_letter in drain(app).dead]
    assert sorted(reasons) == ["bad_arguments", "foreign"]


def test_a_run_that_this_process_cannot_continue_is_dead_at_once(app):
    """No other worker will come: neither for a workflow that the app lacks, nor for steps under another key."""
    pytest.importorskip("cryptography")
    keys = {"e1": b"1" * 32}
    newer = Keyring(encryption={"e2": b"2" * 32, **keys})
    older, newer = (
        QWorker(app.namespace, url=str(app.client.factory.url), keys=each)
        for each in (Keyring(encryption=keys), newer)
    )

    def work(run: SyncRun) -> int:
        value = run.step("draw", lambda: 5)
        run.sleep("1h")
        return value

    for each in (older, newer):
        each.workflow(work, name="work", queue="runs")
    older.tasks["work"].send()
    drain(newer, include_delayed=False)
    app.workflow(work, name="unknown", queue="runs").send()
    drained = drain(older, max_messages=20)
    assert sorted(letter.reason for letter in drained.dead) == ["unknown_key", "unknown_task"]
    assert drained.left == 0
    older.close()
    newer.close()


def test_a_drain_returns_only_its_own_dead_letters(app):
    @app.task
    def bad() -> None:
        raise Bury("no")

    bad.send()
    assert len(drain(app).dead) == 1
    bad.send()
    assert len(drain(app).dead) == 1
    assert app.queue("default").inspect().dead == 2


def test_middleware_of_the_app_runs_and_that_of_the_drain_is_gone_afterwards(app):
    outcomes = []

    class Outcomes(Middleware):
        def after(self, context, outcome, error):
            outcomes.append((context.task, outcome))

    app.use(Outcomes())

    @app.task(batch=2, max_wait="5s")
    def many(numbers: list[int]) -> None: ...

    many.send(1)
    options = many.task_options
    drain(app)
    assert outcomes == [("many", "acked")]
    assert len(app.middleware) == 1
    assert many.task_options == options


def test_attributes_of_the_queue_apply(app):
    app.queue("default").configure(QueueAttributes(max_receives=2))

    @app.task
    def fail() -> None:
        raise ValueError

    fail.send()
    assert drain(app, errors="collect").failed == 2


def test_a_message_that_is_let_expire_returns_after_its_visibility_timeout(app):
    counts = []

    @app.task
    def wait() -> None:
        counts.append((current().receive_count, current().timeouts))
        if len(counts) == 1:
            raise LetExpire

    wait.send()
    assert drain(app).handled == 0
    advance(app, "29s")
    assert drain(app).handled == 0
    advance(app, "2s")
    assert drain(app).handled == 1
    assert counts == [(1, 0), (2, 1)]


@pytest.mark.parametrize("run_async", [False, True])
def test_a_divided_queue_is_drained_in_every_shard(app, run_async):
    handled, tries = [], []

    def add(number: int) -> None:
        tries.append(number)
        if tries.count(number) == 1:
            raise Retry(delay="1m")
        if number == 5:
            raise Bury("a dead letter of a shard")
        handled.append(number)

    async def add_later(number: int) -> None:
        add(number)

    task = app.task(queue="q", name="add")(add_later if run_async else add)
    app.queue("q").divide(3)
    for number in range(6):
        task.send(number)
    drained = drain(app)
    assert sorted(handled) == [0, 1, 2, 3, 4]
    assert (drained.handled, drained.failed, drained.left) == (5, 6, 0)
    assert [dead_letter.reason for dead_letter in drained.dead] == ["rejected"]


def test_left_counts_all_shards_of_a_divided_queue(app):
    @app.task(queue="q")
    def add(number: int) -> None: ...

    app.queue("q").divide(3)
    for number in range(6):
        add.send(number)
    drained = drain(app, max_messages=2)
    assert (drained.handled, drained.left) == (2, 4)


def test_unknown_queues_and_modes_are_refused(app):
    @app.task
    def greet() -> None: ...

    with pytest.raises(InvalidOptionError, match="no task is on queue 'other'"):
        drain(app, queues=["other"])
    with pytest.raises(InvalidOptionError, match="write 'raise' or 'collect'"):
        drain(app, errors="ignore")


def test_an_app_without_tasks_has_nothing_to_drain(app):
    assert drain(app).handled == 0


def _ms(text: str) -> int:
    return duration_ms(text, "waited")
