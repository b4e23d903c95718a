"""Messages that wait for a worker that knows them: a rolling update has producers first, and workers later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker import QWorker, SyncRun
from qworker.consumer.child.handlers.unrunnable import pause_ms
from qworker.testing import advance
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain, history_of, make_due, redis_of, until
from tests.consumer.workers import Lab

HOUR_MS = 3_600_000


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged."""
    with capture_logs() as lines:
        yield lines


def old_version(app: QWorker) -> QWorker:
    """The same app without the task that its new version has."""
    old = QWorker(app.namespace, url=app.url)
    old.task(name="known")(lambda: None)
    return old


def kinds_of_handlers() -> list[tuple[str, Callable[[QWorker, list[int]], Any]]]:
    """A task `new` of each kind."""

    def sync(app: QWorker, ran: list[int]) -> None:
        app.task(name="new")(ran.append)

    def coroutine(app: QWorker, ran: list[int]) -> None:
        @app.task(name="new")
        async def new(n: int) -> None:
            await asyncio.sleep(0)
            ran.append(n)

    def batch(app: QWorker, ran: list[int]) -> None:
        @app.task(name="new", batch=10)
        def new(numbers: list[int]) -> None:
            ran.extend(numbers)

    return [("sync", sync), ("async", coroutine), ("batch", batch)]


@pytest.mark.parametrize(
    "define",
    [kind for _, kind in kinds_of_handlers()],
    ids=[name for name, _ in kinds_of_handlers()],
)
@pytest.mark.slow
def test_a_message_waits_uncounted_for_the_worker_of_the_next_version(
    app: QWorker, define: Callable[[QWorker, list[int]], Any]
) -> None:
    """Ten deliveries to a worker that does not know a task cost its message no try, not even the only one."""
    ran: list[int] = []
    old = old_version(app)
    app.queue("default").send({"task": "new", "args": [7]}, max_receives=1)
    for _ in range(10):
        drain(old)
        make_due(app)
    define(app, ran)

    drain(app)

    assert ran == [7]
    assert history_of(app.queue("default")) == {
        "acked": 1, "promoted": 10, "received": 11, "released": 10, "sent": 1, "unknown": 10
    }  # fmt: skip
    old.close()


def drain_after(span: str, app: QWorker, worker: QWorker) -> None:
    """Let time pass, so that all delayed messages are due, and let a worker receive them."""
    advance(app, span)
    make_due(app)
    drain(worker)


def test_the_wait_counts_from_the_first_worker_that_did_not_know_the_task(app: QWorker) -> None:
    """Neither a delay of a day nor a long backlog before it uses up the hour; after it the message is dead."""
    old = old_version(app)
    queue = app.queue("default")
    queue.send({"task": "new"}, delay="1d")
    drain_after("1d", app, old)
    drain_after("59m", app, old)
    assert (queue.inspect().delayed, queue.inspect().dead) == (1, 0)

    drain_after("61s", app, old)

    (dead_letter,) = queue.dead()
    assert (dead_letter.reason, dead_letter.error_class) == ("unknown_task", "UnknownTaskError")
    assert dead_letter.error == "no task is named 'new'"
    old.close()


def test_a_redriven_message_waits_from_the_start(app: QWorker) -> None:
    """A dead letter of an unknown task that is put back has the whole wait before it again."""
    old = old_version(app)
    queue = app.queue("default")
    queue.send({"task": "new"})
    drain(old)
    drain_after("2h", app, old)
    (dead_letter,) = queue.dead()
    queue.redrive(dead_letter.entry_id)

    drain(old)

    assert (queue.inspect().delayed, queue.inspect().dead) == (1, 0)
    old.close()


def test_a_task_that_was_known_in_between_waits_from_the_start(app: QWorker) -> None:
    """A failure by a worker that knows the task ends the wait; what a rollback makes unknown again begins another."""
    old = old_version(app)
    queue = app.queue("default")
    queue.send({"task": "new"})
    drain(old)
    advance(app, "50m")
    make_due(app)

    @app.task(name="new")
    def fail() -> None:
        raise ValueError

    drain(app)
    drain_after("50m", app, old)

    assert (queue.inspect().delayed, queue.inspect().dead) == (1, 0)
    with redis_of(app) as redis:
        (item,) = redis.zrange(QueueKeys(app.namespace, "default").delayed, 0, -1)
    header = item.split(b"\n")[0]
    assert header.count(b" k=") == 1
    old.close()


def test_without_a_wait_an_unknown_task_is_dead_at_once(app: QWorker) -> None:
    """`--unknown-wait 0` is for those who deploy workers first."""
    old = old_version(app)
    app.queue("default").send({"task": "new"})

    drain(old, unknown_wait_ms=0)

    assert [dead_letter.reason for dead_letter in app.queue("default").dead()] == ["unknown_task"]
    old.close()


@pytest.mark.slow
def test_messages_that_wait_hold_up_no_others(app: QWorker) -> None:
    """Hundreds of messages of an unknown task before a known one: each is read once, and does not come back."""
    ran: list[int] = []
    old = old_version(app)
    old.task(name="count")(ran.append)
    queue = app.queue("default")
    queue.send_many([{"task": "new"}] * 300)
    queue.send({"task": "count", "args": [1]})

    drain(old)

    assert ran == [1]
    assert history_of(queue)["received"] == 301
    assert queue.inspect().delayed == 300
    old.close()


def test_an_unknown_task_is_logged_once_a_minute_and_every_death(
    app: QWorker, logs: list[Any]
) -> None:
    """One line names the task for all its messages; each that is given up has its own line."""
    old = old_version(app)
    queue = app.queue("default")
    queue.send_many([{"task": "new"}] * 20)
    drain(old)
    (waiting,) = [line for line in logs if line["event"] == "task_unknown"]
    advance(app, "2h")
    make_due(app)
    logs.clear()
    drain(old)

    assert (waiting["name"], waiting["queue"], waiting["dead"]) == ("new", "default", False)
    dead = [line for line in logs if line["event"] == "task_unknown"]
    assert [dead_letter["dead"] for dead_letter in dead] == [True] * 20
    old.close()


@pytest.mark.bad_input("data found: unknown task")
def test_pauses_grow_with_the_wait_and_end_with_it() -> None:
    """From 2 s on a fifth of the time waited, 5 min at most; the last one ends when the wait does."""
    assert [
        pause_ms(waited_ms, HOUR_MS, chance=lambda: 0.0)
        for waited_ms in (-5, 0, 10_000, 60_000, 600_000, 2_000_000, HOUR_MS - 1000, HOUR_MS)
    ] == [2000, 2000, 2000, 12_000, 120_000, 300_000, 1000, None]
    assert pause_ms(60_000, HOUR_MS, chance=lambda: 1.0) == 13_200
    assert pause_ms(0, 0) is None


def test_a_message_is_delivered_about_forty_times_in_an_hour() -> None:
    """The pauses of the default wait add up to it, and are few."""
    waited_ms, deliveries = 0, 0
    while (pause := pause_ms(waited_ms, HOUR_MS)) is not None:
        waited_ms += pause
        deliveries += 1
    assert waited_ms == HOUR_MS
    assert 30 <= deliveries <= 50


@pytest.mark.slow
@pytest.mark.nightly("test_a_message_waits_uncounted_for_the_worker_of_the_next_version")
def test_a_rolling_update_loses_nothing(lab: Lab) -> None:
    """New producer, old worker, then both side by side: the new task's messages are run by the new worker alone."""
    lab.app('@app.task\ndef known() -> None:\n    note("known")\n', name="old")
    lab.app('@app.task\ndef fresh(n: int) -> None:\n    note("fresh", n)\n', name="new")
    with lab.worker(spec="old"):
        for n in range(5):
            lab.send("fresh", n, max_receives=1)
        until(lambda: history_of(lab.queue()).get("unknown", 0) >= 5)
        with lab.worker(spec="new"):
            until(lambda: sorted(lab.noted("fresh")) == [[n] for n in range(5)])
    assert "dead" not in history_of(lab.queue())


def test_a_run_is_left_to_a_worker_that_knows_it(app: QWorker, logs: list[Any]) -> None:
    """However long that takes: it may have recorded steps that a new one would repeat."""

    @app.workflow(name="new")
    def new(run: SyncRun) -> int:
        return run.step("one", lambda: 1)

    handle = new.start()
    old = old_version(app)
    drain(old, unknown_wait_ms=0)
    drain_after("5d", app, old)
    assert app.queue("default").inspect().dead == 0
    drain_after("1d", app, app)
    assert handle.result(0) == 1
    old.close()
