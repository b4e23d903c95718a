"""Results of tasks: what is kept, what handles return and raise, and what is refused."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis

from qworker import (
    Bury,
    Discard,
    Handles,
    InvalidNameError,
    InvalidOptionError,
    InvalidResultError,
    Keyring,
    NoResultError,
    ProtectionError,
    QWorker,
    ResultTimeoutError,
    ResultUnknownError,
    Retry,
    StaleReceiptError,
    TaskEndedError,
    TaskFailedError,
    WrongNamespaceError,
)
from qworker.app.handle import Handle
from qworker.testing import drain
from tests import servers
from tests.consumer.driving import until


@dataclass
class Rendition:
    """A value of several types."""

    path: str
    made: datetime
    sizes: set[int]


@pytest.fixture
def looked_at(namespace: str) -> Iterator[tuple[QWorker, Redis]]:
    """An app on its own server, and a client that may see and end its subscriptions."""
    with servers.start("valkey", far=False) as server, server.redis() as client:
        app = QWorker(namespace, url=server.url)
        yield app, client
        app.close()


def ran(app: QWorker) -> None:
    """Run all messages; failures are those of the test."""
    drain(app, errors="collect")


@contextmanager
def running_soon(app: QWorker) -> Iterator[None]:
    """Run the messages of an app in another thread, after the caller has begun to wait."""
    timer = threading.Timer(0.2, lambda: ran(app))
    timer.start()
    try:
        yield
    finally:
        timer.join()


# -- values ---------------------------------------------------------------------------------------


def test_a_result_comes_back_with_its_type(app: QWorker) -> None:
    """As the return annotation says; of a handle by id as well, which knows the task; else as plain JSON."""
    made = datetime(2026, 1, 2, tzinfo=UTC)

    @app.task(queue="video", result="1h")
    def transcode(path: str) -> Rendition:
        return Rendition(path, made, {1, 2})

    handle = transcode.start("a.mp4")
    ran(app)
    expected = Rendition("a.mp4", made, {1, 2})
    assert handle.result(0) == expected
    assert handle.result("1m") == expected
    assert transcode.handle(handle.id).result(0) == expected
    assert transcode.handle(handle) == handle
    plain = app.handle("video", handle.id)
    assert plain.result(0) == {"path": "a.mp4", "made": "2026-01-02T00:00:00Z", "sizes": [1, 2]}
    assert transcode.handle(plain).result(0) == expected


# -- many -----------------------------------------------------------------------------------------


def test_results_of_many_come_in_order(app: QWorker) -> None:
    """Whatever the order in which their messages ended; a slice of the handles waits for its own."""

    @app.task(queue="math", result="1h")
    def square(number: int) -> int:
        return number * number

    handles = square.start_many(square.call(number) for number in range(100))
    with running_soon(app):
        assert handles.results("1m") == [number * number for number in range(100)]
    assert handles[3:5].results(0) == [9, 16]
    assert [len(handles), handles[2].result(0)] == [100, 4]


def test_failures_of_many_stand_in_their_places(app: QWorker) -> None:
    """Each with its own reason; `results` raises the first of them. Tasks may differ, and so may queues."""

    @app.task(queue="one", result="1h")
    def refuse(word: str) -> int:
        raise Bury(word)

    @app.task(queue="two", result="1h")
    def accept(word: str) -> str:
        return word

    handles = Handles([accept.start("a"), refuse.start("b"), refuse.start("c"), accept.start("d")])
    ran(app)
    first, second, third, fourth = handles.outcomes(0)
    assert (first, fourth) == ("a", "d")
    assert isinstance(second, TaskFailedError)
    assert isinstance(third, TaskFailedError)
    assert [second.text, third.text] == ["b", "c"]
    with pytest.raises(TaskFailedError, match="b"):
        handles.results(0)


def test_handles_of_several_apps_wait_in_the_namespaces_of_each(
    app: QWorker, store_url: str
) -> None:
    """Sync and async; a message of the other namespace that has not ended is named with its queue."""
    other = QWorker(f"{app.namespace}-b", url=store_url)
    started = []
    for one in (app, other):

        @one.task(queue="math", result="1h")
        def double(number: int) -> int:
            return 2 * number

        started += [double.start(1), double.start(2)]
        if one is app:
            ran(app)
    handles = Handles(started)
    first, second, *waiting = handles.outcomes("100ms")
    assert (first, second) == (2, 4)
    assert all(isinstance(error, ResultTimeoutError) for error in waiting)
    ran(other)
    assert asyncio.run(aresults_of(handles)) == handles.results("1m") == [2, 4, 2, 4]
    other.close()


async def aresults_of(handles: Handles[int]) -> list[int]:
    """Their results by `aresults`; the clients are closed after that."""
    results = await handles.aresults("1m")
    for handle in handles:
        await handle._app.aqueue(handle.queue).client.close()
    return results


def test_the_timeout_is_that_of_all(app: QWorker) -> None:
    """What has ended is returned; the error of each other message names the whole timeout."""

    @app.task(queue="math", result="1h")
    def square(number: int) -> int:
        return number * number

    handles = square.start_many([square.call(2)])
    ran(app)
    handles = Handles([*(square.start(number) for number in (3, 4)), *handles])
    waiting, waiting_too, done = handles.outcomes("200ms")
    assert done == 4
    for error in (waiting, waiting_too):
        assert isinstance(error, ResultTimeoutError)
        assert error.waited_s == 0.2


def test_many_are_awaited(app: QWorker) -> None:
    """In async code, with the same results."""

    @app.task(queue="math", result="1h")
    async def square(number: int) -> int:
        return number * number

    async def main() -> list[int]:
        handles = await square.astart_many([square.call(number) for number in (1, 2, 3)])
        await asyncio.to_thread(ran, app)
        assert await handles.aoutcomes("1m") == [1, 4, 9]
        try:
            return await handles.aresults(0)
        finally:
            await app.aclose()

    assert asyncio.run(main()) == [1, 4, 9]


def test_many_without_results_are_refused_before_they_are_sent(app: QWorker) -> None:
    """As `start` refuses one."""

    @app.task(queue="math")
    def square(number: int) -> int:
        return number * number

    with pytest.raises(NoResultError):
        square.start_many([square.call(2)])
    assert app.queue("math").inspect().ready == 0


@pytest.mark.parametrize("kind", ["sync", "async", "lambda"])
@pytest.mark.slow
def test_async_tasks_and_waits(app: QWorker, kind: str) -> None:
    """A coroutine's result is what awaiting it gives; `await handle` waits without a thread."""
    if kind == "sync":

        @app.task(result="1h")
        def double(n: int) -> int:
            return 2 * n
    elif kind == "async":

        @app.task(result="1h")
        async def double(n: int) -> int:
            return 2 * n
    else:

        async def inner(n: int) -> int:
            return 2 * n

        double = app.task(name="double", result="1h")(lambda n: inner(n))  # type: ignore[assignment]

    async def wait() -> list[Any]:
        handles = [await double.astart(n) for n in range(20)]
        with running_soon(app):
            results = await asyncio.gather(*handles)
        assert await handles[3].aresult(0) == 6
        await app.aclose()
        return results

    assert asyncio.run(wait()) == [2 * n for n in range(20)]


@pytest.mark.slow
def test_many_threads_wait_over_one_connection(looked_at: tuple[QWorker, Redis]) -> None:
    """However many wait: one subscription of the process hears for all."""
    app, client = looked_at

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handles = [double.start(n) for n in range(30)]
    results: dict[int, int] = {}

    def wait(number: int) -> None:
        results[number] = handles[number].result("1m")

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(30)]
    for thread in threads:
        thread.start()
    keys = app.queue("default").keys
    channels = [keys.result(handle.id) for handle in handles]
    _until_heard(client, channels)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("qworker-results") == 1
    ran(app)
    for thread in threads:
        thread.join()
    assert results == {n: 2 * n for n in range(30)}


def _until_heard(client: Redis, channels: list[str]) -> None:
    """Wait until each channel has its one subscriber."""
    until(lambda: {*client.execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2]} == {1})


def test_results_of_a_queue_with_shards(app: QWorker) -> None:
    """A handle finds the result in whichever shard its message was, sync and async."""
    app.queue("default").divide(3)

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handles = [double.start(n) for n in range(9)]

    async def wait() -> list[int]:
        results = await asyncio.gather(*(double.handle(handle).aresult("1m") for handle in handles))
        await app.aclose()
        return results

    with running_soon(app):
        assert [handle.result("1m") for handle in handles] == [2 * n for n in range(9)]
    assert asyncio.run(wait()) == [2 * n for n in range(9)]


def test_results_of_shards_that_were_merged(app: QWorker) -> None:
    """They stay where they were written, and are found there."""

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    queue = app.queue("default")
    queue.divide(3)
    handles = [double.start(n) for n in range(6)]
    ran(app)
    queue.divide(1)
    ran(app)
    other = QWorker(app.namespace, url=app.url)
    other.queue("default").inspect()
    assert other.queue("default").ref.shards.kept == 1
    found = [other.handle("default", handle.id).result(0) for handle in handles]
    assert found == [2 * n for n in range(6)]
    other.close()


def test_a_lost_hint_delays_a_result_and_loses_none(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking now and then is enough, without any subscription."""
    monkeypatch.setattr(
        "qworker.client.execute.listener._Subscriptions._subscribe", lambda self, wanted: None
    )

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handle = double.start(4)
    with running_soon(app):
        assert handle.result("1m") == 8


@pytest.mark.slow
def test_waiting_survives_the_loss_of_its_connection(looked_at: tuple[QWorker, Redis]) -> None:
    """The subscription is made again, and all that waited look."""
    app, client = looked_at

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handle = double.start(4)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(handle.result("1m")))
    thread.start()
    channels = [app.queue("default").keys.result(handle.id)]
    _until_heard(client, channels)
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    _until_heard(client, channels)
    ran(app)
    thread.join()
    assert got == [8]


def test_a_result_is_protected_as_messages_are(store_url: str, namespace: str) -> None:
    """Signed and encrypted with the app's keys: unreadable and unforgeable without them."""
    pytest.importorskip("cryptography")
    keys = Keyring(signing={"s1": b"k" * 32}, encryption={"e1": b"e" * 32}, required=True)
    app = QWorker(namespace, url=store_url, keys=keys)

    @app.task(result="1h")
    def secret(word: str) -> str:
        return word * 2

    one, two = secret.start("xyzzy"), secret.start("plugh")
    ran(app)
    queue = app.queue("default").keys
    stored = app.client.ask("GET", queue.result(one.id))
    assert stored.startswith(b"ok e=a256gcm.e1 s=s1.")
    assert b"xyzzy" not in stored
    assert (one.result(0), two.result(0)) == ("xyzzyxyzzy", "plughplugh")
    app.client.ask("SET", queue.result(one.id), app.client.ask("GET", queue.result(two.id)))
    with pytest.raises(ProtectionError):
        one.result(0)
    with (
        closing(QWorker(namespace, url=store_url)) as without_keys,
        pytest.raises(ProtectionError),
    ):
        without_keys.handle("default", two.id).result(0)
    app.close()


# -- without a value ------------------------------------------------------------------------------


def test_failures_are_those_of_the_dead_letter(app: QWorker) -> None:
    """With reason, class and text; a retry that succeeds is no failure, and neither is a dead letter redriven."""
    fails = {"always": 9, "once": 1}

    @app.task(result="1h", retry=Retry.fixed("1s"), max_receives=2)
    def flaky(name: str) -> str:
        if fails[name]:
            fails[name] -= 1
            raise ValueError(f"{name} failed")
        return name

    dead, alive = flaky.start("always"), flaky.start("once")
    ran(app)
    assert alive.result(0) == "once"
    with pytest.raises(
        TaskFailedError, match=r"is dead \(max_receives\): ValueError: always failed"
    ) as caught:
        dead.result("1m")
    error = caught.value
    assert (error.queue, error.message_id) == ("default", dead.id)
    assert (error.reason, error.error) == ("max_receives", "ValueError")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    fails["always"] = 0
    [letter] = app.queue("default").dead()
    app.queue("default").redrive(letter.entry_id)
    with pytest.raises(ResultTimeoutError):
        dead.result(0)
    ran(app)
    assert dead.result(0) == "always"


def test_buried_discarded_deleted_purged_and_expired_messages_end_the_wait(app: QWorker) -> None:
    """Each with its own word."""

    @app.task(result="1h")
    def end(how: str) -> None:
        raise Bury("no good") if how == "bury" else Discard("not needed")

    buried, discarded = end.start("bury"), end.start("discard")
    ran(app)
    with pytest.raises(TaskFailedError, match="rejected"):
        buried.result(0)
    _ended(discarded, "discarded")
    deleted = end.start("x")
    app.queue("default").delete(deleted.id)
    _ended(deleted, "cancelled")
    cancelled = end.start("x")
    app.queue("default").cancel(cancelled.id)
    ran(app)
    _ended(cancelled, "cancelled")
    purged = end.start("x")
    app.queue("default").purge()
    _ended(purged, "purged")
    expired = end.options(ttl="10ms").start("x")
    threading.Event().wait(0.05)
    ran(app)
    _ended(expired, "expired")


def _ended(handle: Handle[Any], state: str) -> None:
    with pytest.raises(TaskEndedError, match=f"was {state}") as caught:
        handle.result("1m")
    assert caught.value.state == state
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_timeout_says_what_is_known(app: QWorker) -> None:
    """Waiting still; or unknown, where the queue is short enough to be searched."""

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handle = double.start(1)
    with pytest.raises(TimeoutError, match=r"has no result after 0\.05 s"):
        handle.result("50ms")
    with pytest.raises(ResultTimeoutError):
        handle.result(0)
    unknown = double.handle("no-such-message")
    with pytest.raises(ResultUnknownError, match="is unknown"):
        unknown.result("50ms")
    ran(app)
    app.client.ask("DEL", app.queue("default").keys.result(handle.id))
    with pytest.raises(ResultUnknownError):
        handle.result("50ms")

    async def wait() -> None:
        with pytest.raises(ResultUnknownError):
            await unknown.aresult("50ms")
        pending = await double.astart(1)
        with pytest.raises(ResultTimeoutError):
            await pending.aresult("50ms")
        await app.aclose()

    asyncio.run(wait())


# -- what cannot be kept --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "x" * 2**20,
            "has 1,048,578 bytes of JSON; at most 1 MiB: store it elsewhere and return a reference",
        ),
        (float("nan"), "nan"),
        ([1, object()], r"make\(result\)\[1\]|object"),
        (3 + 4j, "complex"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_dead_letter(
    app: QWorker, value: object, words: str
) -> None:
    """At once: the next try would return the same. Waits end with the reason."""
    runs = []

    @app.task(result="1h")
    def make() -> Any:
        runs.append(1)
        return value

    handle = make.start()
    ran(app)
    with pytest.raises(TaskFailedError, match=words) as caught:
        handle.result(0)
    assert (caught.value.reason, caught.value.error) == ("bad_result", "InvalidResultError")
    assert [letter.reason for letter in app.queue("default").dead()] == ["bad_result"]
    assert runs == [1]


def test_a_result_of_another_type_than_declared_is_refused_by_the_worker(app: QWorker) -> None:
    """As arguments are: what waits for it would fail later."""

    @app.task(result="1h")
    def count() -> int:
        return "many"  # type: ignore[return-value]

    handle = count.start()
    ran(app)
    with pytest.raises(
        TaskFailedError, match=r"count\(result\): is not of the declared type: Expected `int`"
    ):
        handle.result(0)


def test_a_result_that_the_reader_declares_differently(app: QWorker) -> None:
    """The reader says so; the value stays."""

    @app.task(name="count", result="1h")
    def count() -> int:
        return 3

    handle = count.start()
    ran(app)
    other = QWorker(app.namespace, url=app.url)

    @other.task(name="count", result="1h")
    def recount() -> str:
        return ""

    with pytest.raises(InvalidResultError, match=r"count\(result\): is not of the declared type"):
        recount.handle(handle.id).result(0)
    assert handle.result(0) == 3
    other.close()


def test_sends_that_keep_nothing(app: QWorker) -> None:
    """A task without `result`, or a message from before, leaves nothing behind."""

    @app.task
    def plain() -> int:
        return 1

    @app.task(result="1h")
    def kept() -> int:
        return 1

    sent = plain.send(), kept.send(), app.queue("default").send({"task": "kept", "args": []})
    ran(app)
    keys = app.queue("default").keys
    found = [app.client.ask("EXISTS", keys.result(message_id)) for message_id in sent]
    assert found == [0, 1, 0]


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"result": "soon"}, "'soon' is not a duration"),
        ({"result": "10ms"}, "is out of range; it must be a duration from 1s to 30d"),
        ({"result": "31d"}, "is out of range"),
        ({"result": True}, "is not a duration"),
        ({"result": "1h", "batch": 10}, "is set together with batch"),
        ({"result": "1h", "at_most_once": True}, "is set together with at_most_once"),
        ({"result_ttl": "1h"}, "did you mean result?"),
    ],
)
def test_options_that_do_not_fit_are_refused(app: QWorker, options: Any, words: str) -> None:
    """When the task is declared."""
    with pytest.raises(InvalidOptionError, match=words.replace("?", r"\?")):
        app.task(**options)(lambda items: None)


def test_return_types_that_json_cannot_carry_are_refused(app: QWorker) -> None:
    """When the task is declared, as those of parameters; without `result` they do not matter."""

    def load() -> threading.Thread:
        return threading.current_thread()

    with pytest.raises(InvalidOptionError, match=r"load\(result\): is annotated .*Thread"):
        app.task(result="1h")(load)
    app.task(load)


def test_handles_that_cannot_be_are_refused(app: QWorker) -> None:
    """Of a task that keeps no results, of another namespace, of a wrong name; nothing is sent."""

    @app.task
    def plain() -> int:
        return 1

    @app.task(result="1h")
    def kept() -> int:
        return 1

    with pytest.raises(NoResultError, match="task 'plain': keeps no results; declare it with"):
        plain.start()
    with pytest.raises(NoResultError):
        plain.handle("x")
    with pytest.raises(NoResultError, match="visibility: is 0"):
        kept.options(visibility=0).start()
    other = QWorker(f"{app.namespace}-b", url=app.url)
    with pytest.raises(WrongNamespaceError, match="handle: is of the namespace"):
        kept.handle(other.handle("default", "x"))
    for queue, message_id in (("Q", "x"), ("q", ""), ("q", "a b"), ("q", "x" * 65), ("q", None)):
        with pytest.raises(InvalidNameError):
            app.handle(queue, message_id)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError):
        kept.handle("x").result("soon")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(kept.handle("x"))
    assert app.queues() == []


# -- bare clients ---------------------------------------------------------------------------------


def test_a_bare_client_acks_with_a_result(app: QWorker) -> None:
    """Another program may receive the messages of a task; both happen or neither."""

    @app.task(result="1h")
    def double(n: int) -> int:
        return 2 * n

    handle, late = double.start(4), double.start(5)
    queue = app.queue("default")
    first, second = queue.receive(2)
    queue.complete(first, 8)
    assert handle.result(0) == 8
    with pytest.raises(StaleReceiptError):
        queue.complete(first, 9)
    assert handle.result(0) == 8
    with pytest.raises(InvalidResultError, match="store it elsewhere"):
        queue.complete(second, "x" * 2**20)
    queue.complete(second, b"[1]", keep="2s")
    assert app.handle("default", late.id).result(0) == [1]
    assert 0 < app.client.ask("PTTL", queue.keys.result(late.id)) <= 2000

    async def again() -> None:
        handle = await double.astart(6)
        aqueue = app.aqueue("default")
        [message] = await aqueue.receive(1)
        await aqueue.complete(message, 12)
        assert await handle == 12
        outcome = await aqueue.outcome(handle.id)
        assert outcome is not None
        assert outcome.state == "ok"
        await app.aclose()

    asyncio.run(again())


def test_a_message_without_a_wish_needs_keep(app: QWorker) -> None:
    """The sender has set no time for which to keep a result."""
    queue = app.queue("default")
    queue.send({"n": 1})
    [message] = queue.receive(1)
    with pytest.raises(InvalidOptionError, match="keep"):
        queue.complete(message, 1)
    queue.complete(message, 1, keep="1h")
    assert app.handle("default", message.id).result(0) == 1
