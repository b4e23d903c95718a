"""Chains: each step gets the value of the one before, exactly one successor per counted ack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qworker import (
    ArgumentsError,
    BodyTooLargeError,
    Discard,
    InvalidOptionError,
    Keyring,
    Middleware,
    NoResultError,
    QWorker,
    ResultTimeoutError,
    StaleReceiptError,
    TaskEndedError,
    TaskFailedError,
    chain,
)
from qworker.app.chain import Chain
from qworker.app.task import Task
from qworker.consumer.child.settle.relaying import ChildRelay
from qworker.testing import drain
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain as child_drain


def tasks(app: QWorker, *queues: str) -> tuple[Task[..., Any], Task[..., Any], Task[..., Any]]:
    """Three tasks, in the default queue unless these are named."""
    first, second, third = queues or ("default",) * 3

    @app.task(queue=first, result="1h")
    def fetch(url: str) -> list[int]:
        return [1, 2, len(url)]

    @app.task(queue=second, result="1h")
    async def parse(numbers: list[int], factor: int = 1) -> int:
        return sum(numbers) * factor

    @app.task(queue=third, result="1h")
    def store(total: int, *, bucket: str) -> str:
        return f"{bucket}:{total}"

    return fetch, parse, store


def results_of(app: QWorker) -> list[bytes]:
    """The keys of stored results, on all nodes."""
    client = app.client
    pattern = f"{app.namespace}:*result:*"
    return [
        key for node in client.factory.masters() for key in client.ask("KEYS", pattern, node=node)
    ]


@pytest.mark.parametrize("queues", [(), ("a", "b", "c"), ("a", "a", "b"), ("a", "b", "a")])
def test_a_chain_ends_with_the_value_of_its_last_step(app: QWorker, queues: Any) -> None:
    """In one queue and over several; nothing is left behind, and each step is a message sent and acked once."""
    fetch, parse, store = tasks(app, *queues)
    handle = chain(fetch.call("abc"), parse.then(10), store.then(bucket="x")).start()
    drained = drain(app)
    assert handle.result(0) == "x:60"
    assert drained.handled == 3
    names = {fetch.queue, parse.queue, store.queue}
    stats = [app.queue(name).inspect().stats for name in names]
    assert sum(each["sent"] for each in stats) == sum(each["acked"] for each in stats) == 3
    assert all(not app.queue(name).outboxes() for name in names)


@pytest.mark.parametrize(
    ("queues", "dies", "relayed"),
    [(("a", "a", "a"), False, []), (("a", "b", "b"), False, ["a"]), (("a", "a", "b"), True, ["a"])],
)
def test_only_what_concerns_other_queues_is_relayed(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, queues: Any, dies: bool, relayed: list[str]
) -> None:
    """A step in the same queue is sent by its ack alone: its worker asks no outbox."""
    told: list[str] = []
    tell = ChildRelay.tell

    def noted(relay: ChildRelay, keys: QueueKeys) -> None:
        told.append(keys.name)
        tell(relay, keys)

    monkeypatch.setattr(ChildRelay, "tell", noted)
    fetch, parse, store = tasks(app, *queues)
    if dies:
        parse = app.task(queue=queues[1], result="1h", max_receives=1, name="die")(lambda _: 1 / 0)
    handle = chain(fetch.call("abc"), parse.then(), store.then(bucket="x")).start()
    child_drain(app)
    if dies:
        with pytest.raises(TaskFailedError):
            handle.result("1m")
    else:
        assert handle.result("1m") == "x:6"
    assert told == relayed


def test_chains_are_started_from_async_code(app: QWorker) -> None:
    """As from sync code."""
    fetch, parse, _ = tasks(app)

    async def start() -> tuple[Any, str]:
        started = await chain(fetch.call("abc"), parse.then()).astart()
        sent = await chain(fetch.call("abc"), parse.then()).asend()
        await app.aclose()
        return started, sent

    handle, _ = asyncio.run(start())
    assert drain(app).handled == 4
    assert handle.result(0) == 6


def test_a_chain_that_is_sent_keeps_no_result(app: QWorker) -> None:
    """Only `start` needs one: the last task of a chain that is sent need not keep results."""
    fetch, parse, _ = tasks(app)
    seen = []

    @app.task
    def note(total: int) -> None:
        seen.append(total)

    chain(fetch.call("abc"), parse.then(), note.then()).send()
    drain(app)
    assert seen == [6]
    assert not results_of(app)


def test_a_chain_on_its_way_is_waited_for(app: QWorker) -> None:
    """Although its last message does not exist yet."""
    fetch, parse, _ = tasks(app)
    handle = chain(fetch.call("abc"), parse.then()).start()
    with pytest.raises(ResultTimeoutError):
        handle.result("10ms")


@pytest.mark.parametrize("queues", [(), ("a", "b", "c")])
def test_a_dead_step_ends_the_wait_and_a_redrive_goes_on(app: QWorker, queues: Any) -> None:
    """The error names the step; its success replaces the failure."""
    fetch, _, store = tasks(app, *queues)
    broken = [True]

    @app.task(name="count", queue=fetch.queue, result="1h", max_receives=1)
    def count(numbers: list[int]) -> int:
        if broken:
            raise ValueError("no luck")
        return len(numbers)

    handle = chain(fetch.call("abc"), count.then(), store.then(bucket="x")).start()
    drain(app, errors="collect")
    drain(app)
    with pytest.raises(TaskFailedError, match="call of 'count'") as failed:
        handle.result("10s")
    [letter] = app.queue(fetch.queue).dead()
    error = failed.value
    assert (error.step, error.queue, error.error) == ("count", fetch.queue, "ValueError")
    assert error.message_id == letter.message.id
    assert "no luck" in error.text
    broken.clear()
    app.queue(fetch.queue).redrive(letter.entry_id)
    drain(app)
    assert handle.result(0) == "x:3"


def test_a_discarded_or_cancelled_step_ends_the_wait(app: QWorker) -> None:
    """By its handler, or by an operator before it started."""
    fetch, parse, _ = tasks(app, "a", "b", "c")

    @app.task(queue="a", result="1h")
    def give_up() -> list[int]:
        raise Discard("enough")

    discarded = chain(give_up.call(), parse.then()).start()
    drain(app)
    drain(app)
    with pytest.raises(TaskEndedError, match=r"call of 'give_up'.* was discarded"):
        discarded.result("10s")
    cancelled = chain(fetch.call("abc"), parse.then()).start()
    [message] = app.queue("a").peek(1)
    app.queue("a").delete(message.id)
    drain(app)
    with pytest.raises(TaskEndedError, match=r"call of 'fetch'.* was cancelled"):
        cancelled.result("10s")


def test_a_step_of_an_app_on_another_server_waits_on_that_of_the_chain(app: QWorker) -> None:
    """It is ready there, where `doctor` sees that no worker receives it; one that does continues the chain."""
    far = QWorker(app.namespace, url="redis://127.0.0.1:1")
    handle = chain(tasks(app)[0].call("http"), tasks(far, *["far"] * 3)[1].then()).start()
    drain(app)
    assert [message.task for message in app.queue("far").peek()] == ["parse"]
    with pytest.raises(ResultTimeoutError):
        handle.result("10ms")
    near = QWorker(app.namespace, url=app.url)
    tasks(near, *["far"] * 3)
    drain(near)
    assert handle.result("1s") == 7
    near.close()


def test_the_failure_of_a_dropped_step_stands(app: QWorker) -> None:
    """A dead letter that is dropped cannot be redriven; the wait has its reason all the same."""
    fetch, _, store = tasks(app, "a", "b", "c")

    @app.task(name="count", queue="b", result="1h", max_receives=1)
    def count(numbers: list[int]) -> int:
        raise ValueError("no luck")

    handle = chain(fetch.call("abc"), count.then(), store.then(bucket="x")).start()
    drain(app, errors="collect")
    drain(app)
    [letter] = app.queue("b").dead()
    assert app.queue("b").drop_dead(letter.entry_id)
    with pytest.raises(TaskFailedError, match="call of 'count'"):
        handle.result("10s")


@pytest.mark.slow
def test_a_long_chain_shrinks_on_its_way_and_leaves_one_result(app: QWorker) -> None:
    """Each message carries the steps that are left, and the names of up to twenty that are done; no values of these."""
    sizes = []

    class Sizes(Middleware):
        def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
            sizes.append(len(body))

    @app.task(result="1h")
    def add(number: int) -> int:
        return number + 1

    app.use(Sizes())
    handle = Chain(add.call(10), *(add.then() for _ in range(59))).start()
    drain(app)
    assert handle.result(0) == 70
    assert len(sizes) == 60
    named = [min(at, 20) for at in range(60)]
    left = [size - 70 * number for size, number in zip(sizes, named, strict=True)]
    assert left[20:] == sorted(left[20:], reverse=True)
    assert len(set(sizes)) > 50
    assert len(results_of(app)) == 1


def test_a_queue_that_is_purged_and_removed_ends_the_waits_for_its_steps(app: QWorker) -> None:
    """The removal relays its outbox first: no reaper finds it afterwards."""
    fetch, parse, _ = tasks(app, "a", "b", "c")
    ready = chain(fetch.call("abc"), parse.then()).start()
    delayed = chain(fetch.options(delay="1h").call("abc"), parse.then()).start()
    queue = app.queue("a")
    assert queue.purge("ready") == queue.purge("delayed") == 1
    queue.remove()
    assert "a" not in app.queues()
    for handle in (ready, delayed):
        with pytest.raises(TaskEndedError, match=r"call of 'fetch'.* was purged"):
            handle.result("10s")


def test_a_queue_that_is_removed_alone_ends_the_waits_for_its_steps(app: QWorker) -> None:
    """Also for one that runs, whose late end then sends nothing."""
    fetch, parse, _ = tasks(app, "a", "b", "c")
    waiting = chain(fetch.call("abc"), parse.then()).start()
    running = chain(fetch.call("abc"), parse.then()).start()
    [message] = app.queue("a").receive(1)
    app.queue("a").remove()
    for handle in (waiting, running):
        with pytest.raises(TaskEndedError, match=r"fetch.*purged"):
            handle.result(0)
    with pytest.raises(StaleReceiptError):
        app.queue("a").complete(message, [1])


def test_a_wrong_value_is_a_dead_letter_of_the_step_that_gets_it(app: QWorker) -> None:
    """Types of later steps are checked by their worker."""
    fetch, _, store = tasks(app)
    handle = chain(fetch.call("abc"), store.then(bucket="x")).start()  # type: ignore[arg-type]
    drain(app, errors="collect")
    with pytest.raises(TaskFailedError, match="bad_arguments"):
        handle.result(0)


def test_signed_and_encrypted_apps_have_chains(store_url: str, namespace: str) -> None:
    """Bodies of all steps and the result are encrypted; a reader without the keys learns nothing."""
    keyring = Keyring(signing={"s": b"s" * 32}, encryption={"e": b"e" * 32})
    app = QWorker(namespace, url=store_url, keys=keyring)
    fetch, parse, store = tasks(app, "a", "b", "b")
    handle = chain(fetch.call("secret"), parse.then(), store.then(bucket="secret")).start()
    [message] = app.queue("a").peek(1)
    assert b"secret" not in app.client.ask("LINDEX", app.queue("a").keys.ready[0], 0)
    assert message.id
    drain(app)
    assert handle.result(0) == "secret:9"
    app.close()


def test_options_of_steps_reach_their_messages(app: QWorker) -> None:
    """Priority, delay, ttl and max receives are those of each step; middleware sees every send."""
    fetch, parse, _ = tasks(app)
    sent = []

    class Seen(Middleware):
        def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
            sent.append(task)

    app.use(Seen())
    later = parse.options(priority=4, delay="1h", ttl="2h", max_receives=7)
    chain(fetch.call("abc"), later.then()).start()
    drain(app, include_delayed=False)
    [waiting] = app.queue("default").peek(1, state="delayed")
    assert (waiting.flags["p"], waiting.flags["m"], "x" in waiting.flags) == ("4", "7", True)
    assert sent == ["fetch", "parse"]


def refused(make: Callable[[], object], error: type[Exception], words: str, app: QWorker) -> None:
    """Nothing is sent."""
    with pytest.raises(error, match=words):
        make()
    assert app.queues() == []


def test_bad_chains_are_refused_before_anything_is_sent(app: QWorker) -> None:
    """Each with what to do."""
    fetch, parse, store = tasks(app)

    @app.task
    def plain(value: int) -> int:
        return value

    call = fetch.call("abc")
    another = QWorker(f"{app.namespace}-b", url=app.url)
    other = another.task(name="o", result="1h")(lambda n: n)
    for make, error, words in (
        (lambda: chain(call), InvalidOptionError, "chain has one step|chain: has one step"),
        (lambda: chain(plain.call(1), parse.then()), NoResultError, "keeps no results"),
        (lambda: chain(call, plain.then()).start(), NoResultError, "keeps no results"),
        (
            lambda: chain(call, other.then()),
            InvalidOptionError,
            f"step 2 of the chain, 'o': is of the namespace '{another.namespace}', the others are of '{app.namespace}'",
        ),
        (lambda: chain(call, parse.options(unique="k").then()), InvalidOptionError, "unique"),
        (lambda: chain(call, parse.options(maxlen=3).then()), InvalidOptionError, "maxlen"),
        (lambda: parse.then("x"), ArgumentsError, r"parse\(factor\)"),
        (lambda: store.then(), ArgumentsError, r"store\(bucket\): is missing"),
        (lambda: store.then(1, bucket="b"), ArgumentsError, "positional"),
        (
            lambda: chain(call, parse.then(), store.then(bucket="x" * 2**21)).start(),
            BodyTooLargeError,
            "maxsize",
        ),
    ):
        refused(make, error, words, app)  # type: ignore[arg-type]


def test_a_step_whose_worker_keeps_no_results_is_a_dead_letter(app: QWorker) -> None:
    """Its declaration has changed meanwhile: it is not run in vain, and can be redriven."""
    fetch, parse, _ = tasks(app)
    handle = chain(fetch.call("abc"), parse.then()).start()
    older = QWorker(app.namespace, url=app.url)
    older.task(name="fetch")(lambda url: 1 / 0)
    drain(older)
    older.close()
    with pytest.raises(TaskFailedError, match="declare it with result"):
        handle.result("10s")
    app.queue("default").redrive(*(letter.entry_id for letter in app.queue("default").dead()))
    drain(app)
    assert handle.result(0) == 6
