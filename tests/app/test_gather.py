"""Calls that runs make side by side: `run.gather`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from qworker import (
    Cancellation,
    Discard,
    Failure,
    Handle,
    InvalidNameError,
    InvalidOptionError,
    Keyring,
    Message,
    NoResultError,
    QWorker,
    ResultError,
    Retry,
    Run,
    SyncRun,
    TaskEndedError,
    TaskFailedError,
    chain,
    group,
)
from qworker.app.runs.gather import Gather
from qworker.client import cancel_calls
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.errors import OutOfMemoryError, UnavailableError
from qworker.testing import drain
from tests.app.test_runs import Calls, FailingError, stored


@dataclass
class Rendition:
    """What a call returns."""

    path: str
    height: int


class Media:
    """An app with a task that notes its calls and fails for some heights, in a queue of its own."""

    def __init__(self, app: QWorker) -> None:
        self.app = app
        self.made: list[int] = []
        self.fails: set[int] = set()
        self.transcode = app.task(queue="video", result="1h", max_receives=1)(self.work)

    def work(self, path: str, height: int) -> Rendition:
        self.made.append(height)
        if height in self.fails:
            raise ValueError(f"{height} is too much")
        return Rendition(path, height)


@pytest.fixture
def media(app: QWorker) -> Media:
    """The app with its task."""
    return Media(app)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_gathers_values_in_order(media: Media, kind: str) -> None:
    """Of their types; each call is made once, however often the run continues behind it."""
    app, calls = media.app, Calls(failures=1)

    def joined(parts: list[Rendition]) -> str:
        calls.fail()
        return ",".join(f"{part.path}{part.height}" for part in parts)

    if kind == "sync":

        @app.workflow(name="publish", retry=Retry.fixed("1s"))
        def publish(run: SyncRun, path: str) -> str:
            return joined(run.gather(media.transcode.call(path, n) for n in (720, 360, 480)))

    else:

        @app.workflow(name="publish", retry=Retry.fixed("1s"))
        async def apublish(run: Run, path: str) -> str:
            return joined(await run.gather(media.transcode.call(path, n) for n in (720, 360, 480)))

    handle = app.tasks["publish"].start("a")
    assert drain(app, errors="collect").handled == 4
    assert handle.result(0) == "a720,a360,a480"
    assert sorted(media.made) == [360, 480, 720]


def test_a_run_waits_without_a_worker(media: Media) -> None:
    """It is shown as waiting, until the last call has ended; groups that ended leave nothing but its steps."""
    app = media.app

    @app.workflow
    def publish(run: SyncRun) -> int:
        return len(run.gather([media.transcode.call("a", 1), media.transcode.call("a", 2)]))

    handle = publish.start()
    drain(app, queues=["default"])
    status = handle.status()
    assert status is not None
    assert (status.state, status.waits_for) == ("waiting", "gather#1")
    [one] = app.queue("default").calls()
    assert (one.size, one.left, one.state) == (2, 2, "running")
    drain(app, queues=["video"])
    drain(app)
    assert handle.result(0) == 2
    assert app.queue("default").calls() == []
    with app.client.factory.redis(app.queue("default").keys.meta) as redis:
        left: Any = [*redis.scan_iter(match=app.queue("default").keys.join("*"))]
    assert left == []


def test_a_failure_is_raised_once_all_calls_have_ended(media: Media) -> None:
    """The first one in order; the run may catch it, and gets the same one each time."""
    app, seen = media.app, list[str]()
    media.fails = {2, 3}
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def publish(run: SyncRun) -> int:
        try:
            run.gather(media.transcode.call("a", height) for height in (1, 2, 3, 4))
        except TaskFailedError as error:
            seen.append(f"{error.queue} {error.step} {error.error}")
        calls.fail()
        return len(media.made)

    handle = publish.start()
    drain(app, errors="collect")
    assert handle.result(0) == 4
    assert seen == ["video work ValueError"] * 2


def test_failures_can_be_returned(media: Media) -> None:
    """In the places of the values, whether a call is dead or ended otherwise."""
    app = media.app
    media.fails = {2}
    seen: list[Any] = []

    @app.workflow
    async def publish(run: Run) -> None:
        calls = [
            media.transcode.call("a", 1),
            media.transcode.call("a", 2),
            media.transcode.options(ttl="1s", delay="1m").call("a", 3),
        ]
        seen.extend(await run.gather(calls, return_exceptions=True))

    publish.send()
    drain(app, errors="collect")
    rendition, dead, expired = seen
    assert rendition == Rendition("a", 1)
    assert isinstance(dead, TaskFailedError)
    assert isinstance(expired, TaskEndedError)
    assert expired.state == "expired"
    assert isinstance(dead, ResultError)


def test_a_run_may_wait_for_a_redrive(media: Media) -> None:
    """With policy successes a dead call holds the run, until it is redriven; a dropped one is a failure."""
    app = media.app
    media.fails = {2}

    @app.workflow(retry=Retry.none())
    def publish(run: SyncRun) -> int:
        calls = (media.transcode.call("a", height) for height in (1, 2))
        return sum(part.height for part in run.gather(calls, policy="successes"))

    handle, other = publish.start(), publish.start()
    drain(app, errors="collect")
    video = app.queue("video")
    redriven, dropped = video.dead()
    media.fails = set()
    video.redrive(str(redriven.entry))
    video.drop_dead(str(dropped.entry))
    drain(app, errors="collect")
    results = []
    for each in (handle, other):
        try:
            results.append(str(each.result(0)))
        except TaskFailedError as error:
            results.append(error.error)
    assert sorted(results) == ["3", "TaskFailedError"]


def test_chains_groups_and_runs_can_be_gathered(media: Media) -> None:
    """Each with its own last value."""
    app = media.app

    @app.task(result="1h")
    def height_of(part: Rendition) -> int:
        return part.height

    @app.task(result="1h")
    def total(heights: list[int]) -> int:
        return sum(heights)

    @app.workflow
    def inner(run: SyncRun, number: int) -> int:
        return run.step(abs, number)

    @app.workflow
    def publish(run: SyncRun) -> list[int]:
        heights = [chain(media.transcode.call("a", n), height_of.then()) for n in (1, 2)]
        both = group(heights, policy="successes").then(total)
        return run.gather([heights[0], both, inner.call(-7)])

    handle = publish.start()
    drain(app)
    assert handle.result(0) == [1, 3, 7]


def test_gathers_are_numbered_and_may_be_empty(media: Media) -> None:
    """Those of a name in the order of their calls; one without calls ends at once."""
    app = media.app

    @app.workflow
    async def publish(run: Run) -> list[int]:
        first = await run.gather([media.transcode.call("a", 1)])
        none: list[Rendition] = await run.gather([])
        second = await run.gather([media.transcode.call("a", 2)])
        named = await run.gather([media.transcode.call("a", 3)], name="last")
        assert none == []
        return [part.height for part in (*first, *second, *named)]

    handle = publish.start()
    drain(app)
    assert handle.result(0) == [1, 2, 3]
    assert media.made == [1, 2, 3]


def test_a_run_that_is_started_again_gathers_again(media: Media) -> None:
    """A day after its end its id is free, and its queue still knows the numbers of the groups that it began."""
    app = media.app

    @app.workflow(result="1h")
    def publish(run: SyncRun) -> int:
        return len(run.gather([media.transcode.call("a", height) for height in (1, 2)]))

    for _ in range(2):
        handle = publish.options(id="nightly").start()
        drain(app)
        assert handle.result(0) == 2
        keys = app.queue(handle.queue).keys
        with app.client.factory.redis(keys.meta) as redis:
            assert redis.delete(keys.run("nightly"), keys.result("nightly")) == 2
    assert media.made == [1, 2, 1, 2]


@pytest.mark.slow
def test_each_item_of_a_loop_gathers_its_own(media: Media) -> None:
    """Also after an interruption; what was gathered is forgotten with the item."""
    app = media.app

    @app.workflow
    def publish(run: SyncRun) -> int:
        total = 0
        for height in run.each([1, 2, 3, 4], every=2):
            parts = run.gather(
                [media.transcode.call("a", height), media.transcode.call("b", height)]
            )
            assert [part.height for part in parts] == [height, height]
            total = len(stored(app, run.id))
        return total

    handle = publish.start()
    drain(app, interrupt_after=1)
    assert media.made == [1, 1, 2, 2, 3, 3, 4, 4]
    assert handle.result(0) < 12
    assert {*stored(app, handle.id)} == {b"@bytes", b"*each", b"@joins"}
    assert stored(app, handle.id)[b"@joins"].strip() == b""


def test_a_zombie_starts_no_second_group(media: Media) -> None:
    """Two activations at a time make each call once: its group has an id of the run and the name."""
    app = media.app
    queue = app.queue("default")
    held: list[Message] = []

    @app.workflow
    def publish(run: SyncRun) -> int:
        def calls() -> Iterator[Any]:
            if not held:
                with app.client.factory.redis(queue.keys.meta) as redis:
                    [lease] = redis.zrange(queue.keys.unacked, 0, -1)
                    redis.zadd(queue.keys.unacked, {lease: 1})
                queue.reap()
                held.extend(queue.receive(1))
            yield from (media.transcode.call("a", height) for height in (1, 2))

        return len(run.gather(calls()))

    handle = publish.start()
    drain(app, queues=["default"], errors="collect", max_messages=1)
    queue.release(*held)
    drain(app, errors="collect")
    assert handle.result(0) == 2
    assert sorted(media.made) == [1, 2]


@pytest.mark.parametrize("encrypted", [False, True])
def test_gathered_values_are_protected(store_url: str, namespace: str, encrypted: bool) -> None:
    """Signed, or encrypted too, as messages are."""
    keyring = Keyring(signing={"k": b"s" * 32}, encryption={"k": b"e" * 32} if encrypted else {})
    app = QWorker(namespace, url=store_url, keys=keyring)
    media = Media(app)

    @app.workflow
    def publish(run: SyncRun) -> list[int]:
        return [part.height for part in run.gather(media.transcode.call("a", n) for n in (1, 2))]

    handle = publish.start()
    drain(app)
    assert handle.result(0) == [1, 2]
    app.close()


@pytest.mark.slow
def test_a_run_in_a_shard_gathers(media: Media) -> None:
    """Its group is in the shard of the run."""
    app = media.app

    @app.workflow(queue="divided")
    def publish(run: SyncRun) -> int:
        return len(run.gather([media.transcode.call("a", 1)]))

    app.queue("divided").divide(3)
    handles = [publish.start() for _ in range(6)]
    drain(app)
    assert [handle.result(0) for handle in handles] == [1] * 6


def test_a_run_that_fails_before_it_is_parked_makes_each_call_once(
    media: Media, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls are sent; the next activation finds their group, whether they have ended meanwhile or not."""
    calls, park = Calls(failures=2), Gather.park

    def failing(gather: Gather) -> None:
        calls.fail()
        park(gather)

    monkeypatch.setattr(Gather, "park", failing)

    @media.app.workflow(retry=Retry.fixed("1s"))
    def publish(run: SyncRun) -> int:
        return len(run.gather(media.transcode.call("a", height) for height in (1, 2)))

    handle = publish.start()
    drain(media.app, queues=["default"], errors="collect", max_messages=1)
    drain(media.app, errors="collect")
    assert handle.result(0) == 2
    assert sorted(media.made) == [1, 2]


def test_wrong_gathers_are_refused(media: Media) -> None:
    """Before a call is made: no calls, tasks without results, other policies; and calls that are others than before."""
    app = media.app
    seen: list[str] = []
    number = [1, 2]

    @app.task
    def nothing() -> None: ...

    @app.workflow(retry=Retry.none())
    def publish(run: SyncRun) -> None:
        wrong: tuple[tuple[type[Exception], str, Any, dict[str, Any]], ...] = (
            (InvalidOptionError, "is not a call", [5], {}),
            (InvalidOptionError, "is not a call", [media.transcode], {}),
            (
                InvalidOptionError,
                "has 10,001 calls; at most 10,000; gather several times",
                [media.transcode.call("a", 1)] * 10_001,
                {},
            ),
            (InvalidNameError, "gather: 'a b' is not a valid name", [], {"name": "a b"}),
            (NoResultError, "result", [nothing.call()], {}),
            (InvalidOptionError, "unknown", [media.transcode.call("a", 1)], {"policy": "first"}),
        )
        for error, match, calls, options in wrong:
            with pytest.raises(error, match=match):
                run.gather(calls, **options)
            seen.append(match)
        calls = [media.transcode.call("a", height) for height in number]
        number.pop()
        run.gather(calls)

    handle = publish.start()
    errors = drain(app, errors="collect").errors
    with pytest.raises(TaskFailedError, match="give it a name= of its own if you change its calls"):
        handle.result(0)
    assert len(seen) == 12
    assert len(errors) == 1


def test_a_function_error_before_the_calls_makes_none(media: Media) -> None:
    """An error of the code that makes the calls."""

    @media.app.workflow(retry=Retry.none())
    def publish(run: SyncRun) -> None:
        def calls() -> Iterator[Any]:
            yield media.transcode.call("a", 1)
            raise FailingError

        run.gather(calls())

    publish.send()
    drain(media.app, errors="collect")
    assert media.made == []


@pytest.mark.slow
def test_a_gather_that_is_abandoned_fails_for_what_has_not_ended(media: Media) -> None:
    """The run continues, with the values of the calls that have; those that end later change nothing."""
    app = media.app
    seen: list[Any] = []

    @app.workflow
    def publish(run: SyncRun) -> None:
        calls = [media.transcode.call("a", height) for height in (1, 2)]
        seen.append(run.gather(calls, return_exceptions=True))

    handle = publish.start()
    drain(app, queues=["default"])
    drain(app, queues=["video"], max_messages=1)
    [group_] = app.queue("default").calls()
    drain(app, queues=["default"])
    assert app.queue("default").abandon_calls(group_.id)
    drain(app)
    assert handle.result(0) is None
    [[one, late]] = seen
    assert (one, type(late), late.state) == (Rendition("a", 1), TaskEndedError, "not waited for")
    assert (late.queue, late.message_id) == ("video", f"{group_.id}.1")


@pytest.mark.parametrize("calls", [False, True])
def test_a_run_is_cancelled_with_its_calls_if_asked(media: Media, calls: bool) -> None:
    """It does not continue behind its gather; without that its calls run on."""
    app = media.app
    seen: list[Any] = []

    @app.workflow
    def publish(run: SyncRun) -> None:
        seen.append(run.gather(media.transcode.call("a", height) for height in (1, 2)))

    handle = publish.start()
    drain(app, queues=["default"])
    assert handle.cancel(calls=calls) is Cancellation.CANCELLED
    drain(app)
    assert (media.made, seen) == ([] if calls else [1, 2], [])
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    assert app.queue("default").calls() == []


async def cancel_in_async_code(handle: Handle[Any]) -> Cancellation:
    """Cancel a run and its calls on an event loop."""
    try:
        return await handle.acancel(calls=True)
    finally:
        await handle._app.aqueue(handle.queue).client.close()


@pytest.mark.parametrize("by", ["handle", "async handle"])
@pytest.mark.slow
def test_the_cancel_of_a_run_speaks_of_its_calls_too(media: Media, by: str) -> None:
    """One of them runs: it is asked to stop, and a second cancel says so until it has."""
    app = media.app

    @app.workflow
    def publish(run: SyncRun) -> None:
        run.gather(media.transcode.call("a", height) for height in (1, 2))

    handle = publish.start()
    drain(app, queues=["default"])
    video = app.queue("video")
    [running] = video.receive()

    def cancel() -> Cancellation:
        if by == "handle":
            return handle.cancel(calls=True)
        return asyncio.run(cancel_in_async_code(handle))

    assert [cancel(), cancel()] == [Cancellation.CANCELLING] * 2
    video.release(running)
    drain(app)
    assert cancel() is Cancellation.CANCELLED
    assert (media.made, video.inspect().stored, app.queue("default").inspect().stored) == ([], 0, 0)


@pytest.mark.parametrize("by", ["handle", "async handle"])
def test_the_cancel_of_a_run_that_was_interrupted_can_be_repeated(
    media: Media, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The server was full before it came to the calls; the run is found by then, and its calls are later."""
    app = media.app

    @app.workflow
    def publish(run: SyncRun) -> None:
        run.gather(media.transcode.call("a", height) for height in (1, 2))

    handle = publish.start()
    drain(app, queues=["default"])

    def cancel() -> Cancellation:
        if by == "handle":
            return handle.cancel(calls=True)
        return asyncio.run(cancel_in_async_code(handle))

    def full(*_: object) -> Plan[None]:
        raise OutOfMemoryError("the server has reached maxmemory")
        yield

    monkeypatch.setattr(cancel_calls, "_cancel_in", full)
    with pytest.raises(OutOfMemoryError):
        cancel()
    monkeypatch.undo()
    drain(app, queues=["default"])
    assert cancel() is Cancellation.CANCELLED
    drain(app)
    assert media.made == []
    assert app.queue("default").calls() == []
    assert (app.queue("video").inspect().stored, app.queue("default").inspect().stored) == (0, 0)


@pytest.mark.parametrize(
    ("calls", "by"),
    [("of successes", "async handle"), ("of groups", "handle"), ("of chains", "handle")],
)
@pytest.mark.slow
def test_a_run_that_ended_before_its_cancel_was_repeated_names_its_calls(
    media: Media, monkeypatch: pytest.MonkeyPatch, calls: str, by: str
) -> None:
    """The calls that were cancelled ended it; those in queues that the first cancel did not reach are found."""
    app = media.app
    beyond = app.task(name="beyond", queue="zone", result="1h")(media.work)

    @app.task(queue="video", result="1h")
    def again(part: Rendition) -> Rendition:
        return part

    @app.task(queue="video", result="1h")
    def joined(parts: list[Rendition | Failure]) -> Rendition:
        return Rendition("b", len(parts))

    @app.workflow
    def publish(run: SyncRun) -> None:
        near, far = media.transcode.call("a", 1), beyond.call("a", 2)
        if calls == "of successes":
            run.gather([near, far], policy="successes")
        elif calls == "of groups":
            run.gather([group([near, far]).then(joined)])
        else:
            run.gather([near, chain(far, again.then())], policy="successes")

    handle = publish.start()
    drain(app, queues=["default"])
    cancel_in = cancel_calls._cancel_in

    def cancel() -> Cancellation:
        if by == "handle":
            return handle.cancel(calls=True)
        return asyncio.run(cancel_in_async_code(handle))

    def away(shard: QueueRef, *given: Any) -> Plan[None]:
        if shard.keys.name == "zone":
            raise UnavailableError("its server is away")
        yield from cancel_in(shard, *given)

    monkeypatch.setattr(cancel_calls, "_cancel_in", away)
    with pytest.raises(UnavailableError):
        cancel()
    monkeypatch.undo()
    for name in ("video", "default"):
        queue = app.queue(name)
        queue.client.run(relay(app.namespace, queue.ref.keys))
        drain(app, queues=["default"])
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    assert cancel() is Cancellation.CANCELLED
    assert app.queue("zone").inspect().stored == 0
    drain(app)
    assert media.made == []


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.slow
def test_a_gather_has_a_timeout(media: Media, kind: str) -> None:
    """Calls that have not ended by then fail, and each later activation sees the same, whatever they come to."""
    app = media.app
    seen: list[Any] = []
    calls = Calls(failures=1)

    def note(values: list[Any]) -> None:
        seen.append([type(value).__name__ for value in values])
        calls.fail()

    def heights() -> list[Any]:
        return [media.transcode.call("a", 1), media.transcode.options(delay="2h").call("a", 2)]

    if kind == "sync":

        @app.workflow(name="publish", retry=Retry.fixed("2h"))
        def publish(run: SyncRun) -> None:
            note(run.gather(heights(), timeout="1h", return_exceptions=True))
            with pytest.raises(TimeoutError, match="3600 s"):
                run.gather(heights(), timeout="1h")

    else:

        @app.workflow(name="publish", retry=Retry.fixed("2h"))
        async def apublish(run: Run) -> None:
            note(await run.gather(heights(), timeout="1h", return_exceptions=True))
            with pytest.raises(TimeoutError, match="3600 s"):
                await run.gather(heights(), timeout="1h")

    handle = app.tasks["publish"].start()
    drain(app, errors="collect")
    assert handle.result(0) is None
    assert seen == [["Rendition", "ResultTimeoutError"]] * len(seen)
    assert len(seen) >= 2
    assert sorted(media.made) == [1, 1, 2, 2]


@pytest.mark.parametrize("returned", [False, True])
def test_a_gather_that_is_decided_early_has_not_timed_out(app: QWorker, returned: bool) -> None:
    """A call that cannot succeed any more decides it: the others were not waited for, however long they may take."""

    @app.task(queue="video", result="1h")
    def ends() -> int:
        raise Discard("no more")

    @app.task(queue="video", result="1h")
    def lasts() -> int:
        return 1

    @app.workflow
    def publish(run: SyncRun) -> list[str]:
        gather: Any = run.gather
        options = {"policy": "successes", "timeout": "2h", "return_exceptions": returned}
        try:
            ended = gather([lasts.options(delay="1h").call(), ends.call()], **options)
        except TaskEndedError as error:
            ended = [error]
        return [error.state for error in ended]

    handle = publish.start()
    drain(app, max_messages=3)
    assert handle.result(0) == (["not waited for", "discarded"] if returned else ["discarded"])


def test_a_gather_that_ends_in_time_does_not_wait(media: Media) -> None:
    """Its run continues with the last call."""
    app = media.app

    @app.workflow
    def publish(run: SyncRun) -> int:
        return len(run.gather([media.transcode.call("a", 1)], timeout="1h"))

    handle = publish.start()
    assert drain(app).waited == "0s"
    assert handle.result(0) == 1


def test_a_step_beside_a_gather_is_recorded(app: QWorker) -> None:
    """A task group would cancel it when the run is parked, and it would be called again."""
    calls: list[int] = []

    @app.task(queue="others", result="1h")
    def double(number: int) -> int:
        return 2 * number

    async def charge() -> int:
        calls.append(1)
        await asyncio.sleep(0.05)
        return 1

    @app.workflow
    async def order(run: Run) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            doubled = group.create_task(run.gather([double.call(2)]))
            charged = group.create_task(run.step(charge))
        return [charged.result(), doubled.result()]

    handle = order.start()
    drain(app)
    assert handle.result(0) == [1, [4]]
    assert calls == [1]
