"""Waits for results that will not come: they end, and only those."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qworker import Handle, Handles, QWorker, ResultTimeoutError, ResultUnknownError, chain, group
from qworker.app.task import Task
from qworker.client.plan import Plan
from qworker.client.queue import Queue
from qworker.client.results import feed, searching, wait
from qworker.testing import drain
from qworker.wire.shards import WHOLE
from tests.timing import DEADLINE_S


@pytest.fixture
def app(store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[QWorker]:
    """An app without tasks, whose waits search for messages soon."""
    monkeypatch.setattr(wait, "_SEARCH_S", 0.01)
    monkeypatch.setattr(feed, "_SEARCH_S", 0.01)
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


def tasks(app: QWorker) -> tuple[Task[..., Any], Task[..., Any]]:
    """Two tasks in queues of their own."""

    @app.task(queue="first", result="1h")
    def one(number: int) -> int:
        return number

    @app.task(queue="last", result="1h")
    def two(value: Any) -> int:
        return value if isinstance(value, int) else len(value)

    return one, two


def by_result(handle: Handle[Any]) -> Any:
    return handle.result()


def by_await(handle: Handle[Any]) -> Any:
    async def wait_for_it() -> Any:
        try:
            return await handle
        finally:
            await handle._app.aqueue(handle.queue).client.close()

    return asyncio.run(wait_for_it())


def ended(call: Callable[[], Any]) -> Any:
    """What a call without a timeout returns or raises."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(call())
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert ends, "it still waits"
    return ends[0]


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        pytest.param(
            kind,
            result,
            marks=()
            if (result is by_await) == (number % 2 == 1)
            else pytest.mark.nightly(
                "test_a_wait_without_a_timeout_ends_if_the_result_has_expired"
            ),
        )
        for number, kind in enumerate(
            ["message", "group", "chain", "chain by id", "group in chain"]
        )
        for result in (by_result, by_await)
    ],
)
@pytest.mark.slow
def test_a_wait_without_a_timeout_ends_if_the_result_has_expired(
    app: QWorker, result: Callable[[Handle[Any]], Any], kind: str
) -> None:
    """It would last forever: no message is left that could bring a result."""
    handle = forms(app)[kind.removesuffix(" by id")]
    drain(app)
    if kind == "chain by id":
        handle = app.handle(handle.queue, handle.id)
    app.client.ask("DEL", app.queue(handle.queue).keys.result(handle.id))
    assert isinstance(ended(lambda: result(handle)), ResultUnknownError)


@pytest.mark.parametrize("result", [by_result, by_await])
def test_a_handle_from_an_id_soon_tells_that_a_result_has_expired(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, result: Callable[[Handle[Any]], Any]
) -> None:
    """A second is enough in a short queue. What this process has just sent is not searched for so early."""
    brief: list[bool] = []

    def noted(*args: Any, **options: Any) -> Plan[bool]:
        brief.append(options["brief"])
        return searching.is_gone(*args, **options)

    monkeypatch.setattr(wait, "is_gone", noted)
    monkeypatch.setattr(wait, "_SEARCH_S", 3600.0)
    monkeypatch.setattr(wait, "_BRIEF_S", 0.01)
    monkeypatch.setattr(wait, "_FIRST_READ_S", 0.01)
    one, _ = tasks(app)
    sent = one.start(1)
    drain(app)
    app.client.ask("DEL", app.queue("first").keys.result(sent.id))
    assert isinstance(ended(lambda: result(one.handle(sent.id))), ResultUnknownError)
    assert brief == [True]

    brief.clear()
    with pytest.raises(ResultUnknownError):
        sent.result("200ms")
    assert brief == [False]

    brief.clear()
    one.send_many(one.call(number) for number in range(101))
    with pytest.raises(ResultUnknownError):
        one.handle(sent.id).result("1s")
    assert brief == [True, False]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.slow
def test_what_is_in_a_new_shard_is_not_unknown(
    app: QWorker, store_url: str, is_async: bool
) -> None:
    """Another client has divided the queue since this one read its shards: messages are there, and then results."""
    other = QWorker(app.namespace, url=store_url)
    one, _ = tasks(other)

    async def results(handles: list[Handle[Any]]) -> list[Any]:
        by_id = [app.handle("first", handle.id) for handle in handles]
        if not is_async:
            return [ended(lambda waited=waited: waited.result("50ms")) for waited in by_id]
        waits = (waited.aresult("50ms") for waited in by_id)
        return await asyncio.gather(*waits, return_exceptions=True)

    async def scenario() -> None:
        queue = app.aqueue("first") if is_async else app.queue("first")
        other.queue("first").divide(2, wait=0)
        handles = [one.start(number) for number in range(4)]
        queue.ref.learn(WHOLE)
        assert {type(error) for error in await results(handles)} == {ResultTimeoutError}
        drain(other)
        queue.ref.learn(WHOLE)
        assert await results(handles) == [0, 1, 2, 3]
        if is_async:
            await app.aqueue("first").client.close()

    asyncio.run(scenario())
    other.close()


def by_results(handles: Handles[Any]) -> list[Any]:
    return handles.outcomes()


def by_aresults(handles: Handles[Any]) -> list[Any]:
    async def wait_for_them() -> list[Any]:
        try:
            return await handles.aoutcomes()
        finally:
            await handles[0]._app.aqueue("first").client.close()

    return asyncio.run(wait_for_them())


@pytest.mark.parametrize("outcomes", [by_results, by_aresults])
@pytest.mark.slow
def test_calls_that_are_gone_are_searched_for_in_the_same_time(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, outcomes: Callable[[Handles[Any]], list[Any]]
) -> None:
    """The time until the first search is that of the whole wait: after it, each next call is searched for at once."""
    monkeypatch.setattr(wait, "_SEARCH_S", 1.0)
    one, _ = tasks(app)
    handles = one.start_many(one.call(number) for number in range(20))
    drain(app)
    keys = app.queue("first").keys
    for handle in handles[1:]:
        app.client.ask("DEL", keys.result(handle.id))
    began = time.monotonic()
    first, *others = ended(lambda: outcomes(handles))
    assert first == 0
    assert [type(other) for other in others] == [ResultUnknownError] * 19
    assert time.monotonic() - began < 19 * 1.0, "each was waited for on its own"


def test_a_chain_with_a_dead_step_is_not_unknown(app: QWorker) -> None:
    """A redrive continues it, also after the record of its death has expired."""
    one, two = tasks(app)

    @app.task(queue="first", result="1h", max_receives=1)
    def fail(number: int) -> int:
        raise ValueError(number)

    handle = chain(one.call(1), fail.then(), two.then()).start()
    drain(app, errors="collect")
    app.client.ask("DEL", app.queue("last").keys.result(handle.id))
    for waited in (handle, app.handle("last", handle.id)):
        with pytest.raises(ResultTimeoutError):
            waited.result("50ms")


def forms(app: QWorker) -> dict[str, Handle[Any]]:
    """A message, a chain, a group, and a group as a later step, none of which has come to its last message."""
    one, two = tasks(app)
    return {
        "message": one.start(1),
        "chain": chain(one.call(1), two.then()).start(),
        "group": group([one.call(1)]).then(two).start(),
        "named group": group([one.call(1)]).then(two).start(id="nightly"),
        "group in chain": chain(one.call(1), group([one.then()]).then(two)).start(),
    }


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.slow
def test_what_has_not_come_to_its_last_message_is_not_unknown(app: QWorker, by_id: bool) -> None:
    """Neither for the handle of the start nor for one that knows the id alone; and its feed has not ended."""
    for name, handle in forms(app).items():
        waited: Handle[Any] = app.handle(handle.queue, handle.id) if by_id else handle
        with pytest.raises(ResultTimeoutError):
            waited.result("100ms")
        reading = waited.feed(timeout="100ms")
        with pytest.raises(ResultTimeoutError):
            next(reading, name)
    drain(app)
    assert waited.result(0) == 1


def moving(queue: Queue) -> tuple[list[int], Callable[..., Plan[None]]]:
    """A search in which the message of a queue is given back, and the list of such searches."""
    missed: list[int] = []

    def moves(*_: object) -> Plan[None]:
        queue.release(*queue.receive())
        missed.append(1)
        return
        yield

    return missed, moves


def test_a_message_that_moves_during_each_search_is_not_unknown(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given back, or retried, where a search has been already: nothing is known of it then."""
    one, _ = tasks(app)
    handle, queue = one.start(1), app.queue("first")
    missed, moves = moving(queue)
    monkeypatch.setattr(searching, "show", moves)
    with pytest.raises(ResultTimeoutError):
        handle.result("50ms")
    assert missed


def test_a_step_that_moves_during_each_search_is_not_unknown(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a chain is given back where a search has been already: the chain may go on."""
    one, two = tasks(app)
    handle, queue = chain(one.call(1), two.then()).start(), app.queue("first")
    missed, moves = moving(queue)
    monkeypatch.setattr(searching, "locate_step", moves)
    with pytest.raises(ResultTimeoutError):
        handle.result("50ms")
    assert missed
