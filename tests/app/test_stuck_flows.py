"""Flows that hang, grow or leak in other libraries, as their issues tell, and what becomes of them here.

Each test is one of them; docs/stuck-flows.md has the table.
"""

from __future__ import annotations

from typing import Any

import pytest

from qworker import (
    Failure,
    QWorker,
    RateLimited,
    ResultTimeoutError,
    Retry,
    Run,
    SyncRun,
    TaskFailedError,
    chain,
    group,
)
from qworker.app.middleware import Middleware
from qworker.client import calls
from qworker.client.plan import Plan
from qworker.engine import calls as commands
from qworker.testing import drain


class Sizes(Middleware):
    """Notes the sizes of what is sent."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
        """Note the size of a body."""
        self.bytes.append(len(body))


def forever(app: QWorker) -> list[str]:
    """Keys of results, groups of calls and runs that never expire."""
    kinds = ("result", "join", "joins", "run", "runs")
    with app.client.factory.redis(app.queue("default").keys.meta) as redis:
        return [
            name.decode()
            for name in redis.scan_iter(match=f"{app.namespace}:*", count=1000)
            if name.partition(b"}:")[2].partition(b":")[0].decode() in kinds
            and redis.pttl(name) == -1
        ]


def test_a_failure_in_a_nested_group_reaches_the_outer_callback(app: QWorker) -> None:
    """celery#9674: a call fails in a chain within a group within a group, and the outer callback is waited for ever."""

    @app.task(result="1h")
    def work(number: int) -> int:
        return number

    @app.task(result="1h", max_receives=1)
    def fail(number: int) -> int:
        raise ValueError("as always")

    @app.task(result="1h")
    def total(values: list[int | Failure]) -> str:
        return "+".join("failed" if isinstance(value, Failure) else str(value) for value in values)

    @app.task(result="1h")
    def finish(values: list[str | Failure]) -> str:
        return ",".join(str(value) for value in values)

    failing = chain(work.call(1), fail.then(), work.then())
    one = group([failing, work.call(2)]).then(total)
    two = group([work.call(3)]).then(total)
    handle = group([one, two]).then(finish).start()
    drained = drain(app, errors="collect")
    assert handle.result(0) == "failed+2,3"
    # Nothing polled: the calls and callbacks, once each.
    assert (drained.handled, drained.failed, drained.left) == (6, 1, 0)


@pytest.mark.slow
def test_a_chain_of_groups_does_not_carry_more_than_its_steps(app: QWorker) -> None:
    """celery#5000: each group of a chain of groups carries all that follows several times, until memory runs out."""

    @app.task(result="1h")
    def work(number: int) -> int:
        return number

    @app.task(result="1h")
    def total(values: list[int]) -> int:
        return sum(values)

    def sizes(steps: int) -> list[int]:
        sent = Sizes()
        app.middleware[:] = [sent]
        first = group([work.call(1), work.call(1)], policy="successes").then(total)
        later = [
            group([work.then(), work.then()], policy="successes").then(total) for _ in range(steps)
        ]
        flow: Any = chain
        handle = flow(first, *later).start()
        drain(app)
        assert handle.result(0) == 2 ** (steps + 1)
        return sent.bytes

    few, many = sizes(4), sizes(8)
    # What follows a step is in its callback, once: twice as many steps are twice as many bytes, not their power.
    assert max(many) < 2.5 * max(few)
    assert sum(many) < 5 * sum(few)
    assert many[-1] < 200


@pytest.mark.slow
def test_what_groups_keep_expires(app: QWorker) -> None:
    """celery#9797: a process keeps a subscription for each result of its groups, also of those that it has forgotten.

    Here no handle has one, and a wait until it ends; nor does anything stay in Redis.
    """

    @app.task(result="1m", max_receives=1)
    def work(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number

    @app.task(result="1m")
    def total(values: list[int | Failure]) -> int:
        return len(values)

    @app.workflow
    def gather(run: SyncRun) -> int:
        return len(run.gather((work.call(1), work.call(-1)), return_exceptions=True))

    handles = [
        group([work.call(1), work.call(-1)]).then(total).start(),
        chain(work.call(1), work.then()).start(),
        gather.start(),
    ]
    listener = app.client.listener
    assert not listener._watches
    for handle in handles:
        with pytest.raises(ResultTimeoutError):
            handle.result("10ms")
    drain(app, errors="collect")
    assert [handle.result(0) for handle in handles] == [2, 1, 2]
    assert not listener._watches
    assert forever(app) == []
    with app.client.factory.redis(app.queue("default").keys.meta) as redis:
        values: Any = [*redis.scan_iter(match=app.queue("default").keys.join("*"))]
    assert values == []


@pytest.mark.parametrize("at", ["members", "relay"])
@pytest.mark.slow
def test_an_interrupted_start_continues(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """celery#1700: the process that creates a chord is interrupted, and what waits for its calls is retried for ever.

    Once the group is written, a reaper sends its calls. Before that, a second start of its id continues it.
    """

    @app.task(result="1h")
    def work(number: int) -> int:
        return number

    @app.task(result="1h")
    def total(values: list[int]) -> int:
        return len(values)

    size = 1050  # written in two parts
    flow = group((work.call(number) for number in range(size)), policy="successes").then(total)
    if at == "members":
        begin, begun = commands.begin, list[int]()

        def broken(*args: Any, **options: Any) -> Any:
            begun.append(1)
            if len(begun) == 2:
                raise KeyboardInterrupt
            return begin(*args, **options)

        monkeypatch.setattr(commands, "begin", broken)
    else:

        def away(*_: object) -> Plan[None]:
            raise KeyboardInterrupt
            yield

        monkeypatch.setattr(calls, "relay", away)
    with pytest.raises(KeyboardInterrupt):
        flow.start(id="nightly")
    monkeypatch.undo()
    drain(app, max_messages=2000)
    if at == "members":
        [one] = app.queue("default").calls()
        assert (one.state, one.sent) == ("starting", 1000)
        flow.start(id="nightly")
        drain(app, max_messages=2000)
    assert flow.start(id="nightly").result(0) == size
    assert app.queue("default").inspect().stats["acked"] == size + 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_parent_continues_when_all_of_its_calls_have_failed(app: QWorker, kind: str) -> None:
    """bullmq#3122: children that a running parent has added fail, and the parent waits for them for ever."""

    @app.task(queue="children", result="1h", max_receives=1)
    def child(number: int) -> int:
        raise ValueError(number)

    if kind == "sync":

        @app.workflow(name="parent")
        def parent(run: SyncRun) -> int:
            return len(run.gather((child.call(n) for n in range(3)), return_exceptions=True))

    else:

        @app.workflow(name="parent")
        async def aparent(run: Run) -> int:
            calls = (child.call(n) for n in range(3))
            return len(await run.gather(calls, return_exceptions=True))

    handle = app.tasks["parent"].start()
    drained = drain(app, errors="collect")
    assert handle.result(0) == 3
    assert (drained.handled, len(drained.dead)) == (1, 3)


def test_a_failed_call_lets_the_callback_run_or_says_what_it_waits_for(app: QWorker) -> None:
    """bullmq#3362: a child has failed for good, its parent waits, and only a look at each child tells why."""

    @app.task(queue="children", result="1h", retry=Retry.none())
    def child(number: int) -> int:
        if number == 1:
            raise ValueError("for good")
        return number

    @app.task(queue="parents", result="1h")
    def parent(values: list[int | Failure]) -> int:
        return sum(isinstance(value, Failure) for value in values)

    @app.task(queue="parents", result="1h")
    def strict(values: list[int]) -> int:
        return sum(values)

    handle = group(child.call(n) for n in range(3)).then(parent).start()
    waiting = group((child.call(n) for n in range(3)), policy="successes").then(strict).start()
    drain(app, errors="collect")
    assert handle.result(0) == 1
    [one] = app.queue("parents").calls()
    assert (one.state, one.dead) == ("blocked", (1,))
    with pytest.raises(TaskFailedError, match="for good") as caught:
        waiting.result(0)
    assert (caught.value.queue, caught.value.step) == ("children", "child")


def test_a_level_in_between_may_fail(app: QWorker) -> None:
    """bullmq#3235: a leaf fails, its parent with it, and the grandparent waits although no child of its is left."""

    @app.task(queue="leaves", result="1h", max_receives=1)
    def leaf(fails: bool) -> str:
        if fails:
            raise ValueError("leaf")
        return "leaf"

    @app.task(queue="middle", result="1h", max_receives=1)
    def middle(values: list[str | Failure]) -> str:
        if any(isinstance(value, Failure) for value in values):
            raise RuntimeError("with its leaf")
        return "middle"

    @app.task(queue="top", result="1h")
    def top(values: list[str | Failure]) -> list[str]:
        return [value.error if isinstance(value, Failure) else value for value in values]

    mids = [group([leaf.call(fails)]).then(middle) for fails in (True, False)]
    handle = group(mids).then(top).start()
    drain(app, errors="collect")
    assert handle.result(0) == ["RuntimeError", "middle"]


def test_calls_in_a_queue_that_is_rate_limited_all_run(app: QWorker) -> None:
    """bullmq#2644: of fifteen children in a rate limited queue some never start, and their parent never runs."""
    refused: set[int] = set()

    @app.task(queue="children", result="1h")
    def child(number: int) -> int:
        if number % 3 == 0 and number not in refused:
            refused.add(number)
            raise RateLimited("50ms")
        return number

    @app.task(queue="parents", result="1h")
    def parent(values: list[int]) -> int:
        return sum(values)

    flow = group((child.call(n) for n in range(15)), policy="successes").then(parent)
    handle = flow.start()
    for _ in range(10):
        drain(app)
        if not app.queue("parents").calls():
            break
        with app.client.factory.redis(app.queue("children").keys.meta) as redis:
            redis.hdel(app.queue("children").keys.meta, "paused")  # the limit's time is over
    assert handle.result(0) == sum(range(15))
    assert len(refused) == 5
