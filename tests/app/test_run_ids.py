"""Runs whose id the caller has chosen: they are started once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qworker import (
    Cancellation,
    InvalidNameError,
    InvalidOptionError,
    Keyring,
    QueueAttributes,
    QueueFullError,
    QWorker,
    Retry,
    Run,
    RunStartedError,
    SyncRun,
    TaskEndedError,
    TaskFailedError,
)
from qworker.errors import QueuePausedError
from qworker.testing import drain


def test_a_run_is_started_once_by_its_id(app: QWorker) -> None:
    """A second start with the same arguments, given in any way, returns the same handle, before and after the end."""
    called: list[str] = []

    @app.workflow(queue="orders")
    def order(run: SyncRun, number: str, prices: dict[str, int] | None = None) -> str:
        return run.step("charge", lambda: called.append(number) or f"{run.id}: {number}")  # type: ignore[func-returns-value]

    named = order.options(id="order-17")
    first = named.start("17", {"a": 1, "b": 2})
    assert named.start(number="17", prices={"b": 2, "a": 1}) == first == order.handle("order-17")
    with pytest.raises(RunStartedError, match="order-17 of queue 'orders' was already started"):
        named.start("18")
    assert app.queue("orders").inspect().ready == 1
    drain(app)
    assert first.result(0) == "order-17: 17"
    assert named.start("17", {"a": 1, "b": 2}).result(0) == "order-17: 17"
    with pytest.raises(RunStartedError):
        named.send("17")
    assert drain(app).handled == 0
    assert called == ["17"]


def test_starts_at_the_same_time_store_one_run(app: QWorker) -> None:
    """From threads and from async code."""

    @app.workflow
    async def order(run: Run, number: int) -> int:
        return number

    with ThreadPoolExecutor(8) as pool:
        handles = {*pool.map(lambda _: order.options(id="a").start(5), range(32))}

    async def starts() -> None:
        named = order.options(id="a")
        handles.update(await asyncio.gather(*(named.astart(5) for _ in range(8))))
        with pytest.raises(RunStartedError):
            await named.asend(6)
        await app.aclose()

    asyncio.run(starts())
    [handle] = handles
    assert drain(app).handled == 1
    assert handle.result(0) == 5


def test_an_id_is_taken_until_its_steps_are_forgotten(app: QWorker) -> None:
    """A dead run keeps its id; so does one that was cancelled or purged, for as long as `result=` says."""

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun, number: int) -> int:
        return 1 // number

    dead = order.options(id="dead")
    drain_errors = dead.start(0)
    drain(app, errors="collect")
    with pytest.raises(TaskFailedError):
        dead.start(0).result(0)
    app.queue("default").redrive()
    drain(app, errors="collect")
    with pytest.raises(TaskFailedError):
        drain_errors.result(0)

    cancelled = order.options(id="cancelled")
    assert cancelled.start(1).cancel() is Cancellation.CANCELLED
    with pytest.raises(TaskEndedError):
        cancelled.start(1).result(0)

    keys = app.queue("default").keys
    with app.client.factory.redis(keys.meta) as redis:
        assert 86_000_000 < redis.pttl(keys.run("cancelled")) <= 86_400_000
        # Time passes.
        redis.delete(keys.run("cancelled"), keys.result("cancelled"))
        redis.zadd(keys.cancelled, {"cancelled": 1e15})
    again = cancelled.start(2)
    drain(app)
    assert again.result(0) == 0


def test_a_removed_queue_gives_ids_free(app: QWorker) -> None:
    """Also that of a dead run, and its result."""
    fails = [True]

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> str:
        if fails:
            raise ValueError
        return "done"

    order.options(id="a").start()
    drain(app, errors="collect")
    app.queue("default").remove()
    fails.clear()
    handle = order.options(id="a").start()
    drain(app)
    assert handle.result(0) == "done"


def test_a_run_with_an_id_has_the_options_of_its_sender(app: QWorker) -> None:
    """Delay, priority and limits hold, and a refused start takes no id; one that was started is found anyway."""

    @app.workflow
    def order(run: SyncRun, number: int) -> int:
        return number

    queue = app.queue("default")
    queue.configure(QueueAttributes(maxlen=2))
    order.options(id="first", priority=7).start(1)
    order.options(id="later").send_later("1h", 2)
    with pytest.raises(QueueFullError):
        order.options(id="third").start(3)
    queue.pause("in")
    with pytest.raises(QueuePausedError):
        order.options(id="third").start(3)
    assert order.options(id="first").start(1).id == "first"
    inspection = queue.inspect()
    assert (inspection.ready, inspection.delayed) == (1, 1)
    queue.resume()
    queue.configure(QueueAttributes())
    third = order.options(id="third").start(3)
    drain(app)
    assert third.result(0) == 3


def test_a_divided_queue_starts_a_run_once(app: QWorker, store_url: str) -> None:
    """Whether it was divided before, after or between the starts, and whatever the client knows of it."""

    @app.workflow(queue="orders")
    def order(run: SyncRun, number: int) -> int:
        return run.step(abs, number)

    first = order.options(id="a").start(-1)
    app.queue("orders").divide(4)
    other = QWorker(app.namespace, url=store_url)
    again: Any = other.workflow(queue="orders", name="order")(order.workflow)
    assert again.options(id="a").start(-1).id == first.id
    late = [again.options(id=f"b{number}").start(number) for number in range(6)]
    other.close()
    drained = drain(app)
    assert drained.handled == 7
    assert first.result(0) == 1
    assert [order.handle(handle.id).result(0) for handle in late] == [0, 1, 2, 3, 4, 5]


def test_what_a_run_was_started_with_is_sealed(store_url: str, namespace: str) -> None:
    """By an app that encrypts: Redis holds no digest that guesses could be compared with."""
    app = QWorker(
        namespace,
        url=store_url,
        keys=Keyring(signing={"k": b"s" * 32}, encryption={"k": b"e" * 32}),
    )

    @app.workflow
    def order(run: SyncRun, pin: int) -> int:
        return pin

    handle = order.options(id="x" * 64).start(1234)
    assert order.options(id="x" * 64).start(1234) == handle
    with pytest.raises(RunStartedError):
        order.options(id="x" * 64).start(1235)
    keys = app.queue("default").keys
    with app.client.factory.redis(keys.meta) as redis:
        stored = bytes(redis.hget(keys.run(handle.id), "@start"))
    assert order.signature.identify(order.signature.encode([1234], {})) not in stored
    drain(app)
    assert handle.result(0) == 1234
    app.close()


def test_wrong_ids_are_refused(app: QWorker) -> None:
    """Before anything is sent; an id is of one run, not of many messages."""

    @app.workflow
    def order(run: SyncRun, number: int) -> int:
        return number

    for wrong in ("", "a b", "a/b", "x" * 65, 17):
        with pytest.raises(InvalidNameError, match="id"):
            order.options(id=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="together with an id"):
        order.options(id="a", unique="a")
    named = order.options(id="a")
    with pytest.raises(InvalidOptionError, match="is the id of one run"):
        named.send_many([order.call(1)])
    with pytest.raises(InvalidOptionError, match="is the id of one run"):
        named.call(1)
    with pytest.raises(InvalidOptionError, match="is the id of one run"):
        named.then()
    assert app.queue("default").inspect().ready == 0
