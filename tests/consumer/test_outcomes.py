"""How messages end, by what their handlers do: the table of outcomes, against a real server."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict
from uuid import UUID

import pytest

from qworker import (
    ArgumentsError,
    Bury,
    Discard,
    LetExpire,
    QueueAttributes,
    QWorker,
    Release,
    Retry,
)
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain, history_of, make_due, redis_of, running, until


def raising(error: BaseException) -> Any:
    def handler() -> None:
        raise error

    return handler


def test_a_handler_that_returns_acks_its_message_whatever_it_returns(app: QWorker) -> None:
    """A handler that returns acks its message, also if it returns what no JSON can hold."""
    task = app.task(name="task")(lambda: object())
    task.send()

    drain(app)

    assert history_of(app.queue("default")) == {"acked": 1, "received": 1, "sent": 1}


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (Discard("of no use"), {"discarded": 1}),
        (Bury("never"), {"dead": 1, "dead:rejected": 1}),
        (Release("1m"), {"released": 1, "stored": 1}),
        (LetExpire(), {"stored": 1, "unacked": 1}),
        (Retry("1m"), {"nacked": 1, "stored": 1}),
        (Retry(), {"nacked": 1, "stored": 1}),
        (ValueError("no"), {"nacked": 1, "stored": 1}),
        (SystemExit(0), {"nacked": 1, "stored": 1}),
        (KeyboardInterrupt(), {"nacked": 1, "stored": 1}),
        (asyncio.CancelledError(), {"nacked": 1, "stored": 1}),
        (MemoryError(), {"nacked": 1, "stored": 1}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_a_handler_raises_says_how_its_message_ends(
    app: QWorker, error: BaseException, counted: dict[str, int]
) -> None:
    """Each control-flow exception ends the message its own way, and everything else is a failure that is retried."""
    task = app.task(name="task")(raising(error))
    task.send()

    drain(app)

    assert history_of(app.queue("default")) == {"received": 1, "sent": 1, **counted}


def test_an_async_handler_ends_its_message_in_the_same_ways(app: QWorker) -> None:
    """What a coroutine raises counts as what a function raises."""

    @app.task
    async def end(how: str) -> None:
        await asyncio.sleep(0)
        match how:
            case "discard":
                raise Discard
            case "bury":
                raise Bury("never")
            case "release":
                raise Release("1m")
            case "retry":
                raise Retry("1m")
            case "fail":
                raise ValueError
            case "exit":
                raise SystemExit(1)

    for how in ("return", "discard", "bury", "release", "retry", "fail", "exit"):
        end.send(how)

    drain(app)

    assert history_of(app.queue("default")) == {
        "acked": 1,
        "dead": 1,
        "dead:rejected": 1,
        "discarded": 1,
        "nacked": 3,
        "received": 7,
        "released": 1,
        "sent": 7,
        "stored": 4,
    }


def test_a_dead_letter_tells_what_was_raised(app: QWorker) -> None:
    """The dead letter of a failure has the class, the end of the traceback and the receive count."""

    @app.task(max_receives=1)
    def fail(n: int) -> None:
        raise LookupError(f"nothing under {n}")

    fail.send(7)

    drain(app)

    (letter,) = app.queue("default").dead()
    assert (letter.reason, letter.error_class) == ("max_receives", "LookupError")
    assert letter.error.startswith("Traceback (most recent call last)")
    assert letter.error.endswith("LookupError: nothing under 7")
    assert letter.message is not None
    assert (letter.message.receives, letter.message.nacks) == (1, 1)


def test_bury_and_discard_tell_their_reason(app: QWorker, capsys: Any) -> None:
    """The reason of `Bury` stands in the dead letter, without a traceback."""
    app.task(name="bury")(raising(Bury("the account is closed"))).send()

    drain(app)

    (letter,) = app.queue("default").dead()
    assert (letter.reason, letter.error_class, letter.error) == (
        "rejected",
        "Bury",
        "the account is closed",
    )


class UnspeakableError(Exception):
    """An error of whom nothing can be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnspeakableError(), "<exception str() failed>"),
        (ValueError("x" * 10_000_000), "ValueError: xxx"),
        (ValueError(object()), "ValueError: <object object at"),
        (ExceptionGroup("many", [ValueError("a"), KeyError("b")]), "KeyError: 'b'"),
    ],
    ids=["str raises", "10 MB", "no text", "group"],
)
def test_an_error_that_can_hardly_be_told_is_told_in_2_kib(
    app: QWorker, error: Exception, words: str
) -> None:
    """An error whose text raises, is huge or is no text costs neither the message nor the worker anything."""
    app.task(name="task", max_receives=1)(raising(error)).send()

    drain(app)

    (letter,) = app.queue("default").dead()
    assert letter.error_class == type(error).__name__
    assert words in letter.error
    assert len(letter.error) <= 2048


def test_recursion_without_end_is_a_failure_like_any_other(app: QWorker) -> None:
    """A handler that recurses until Python stops it is nacked, and the next message is handled."""

    @app.task
    def deep(n: int) -> int:
        return deep(n + 1) if n else 0

    deep.send(1)
    deep.send(0)

    drain(app)

    counted = history_of(app.queue("default"))
    assert (counted["acked"], counted["nacked"]) == (1, 1)


# -- retries -----------------------------------------------------------------------------------


def test_the_retry_policy_of_a_task_says_how_long_a_failure_waits(app: QWorker) -> None:
    """The wait after a failure is that of the task's policy, step by step."""

    @app.task(retry=Retry.intervals("10s", "20s"), max_receives=3)
    def fail() -> None:
        raise ValueError

    fail.send()
    queue = app.queue("default")
    waits = []
    for _ in range(2):
        drain(app)
        seen = queue.inspect()
        assert seen.next_due_ms is not None
        waits.append(round((seen.next_due_ms - seen.now_ms) / 1000))
        make_due(app)
    drain(app)

    assert waits == [10, 20]
    assert queue.inspect().stats["dead:max_receives"] == 1


def test_retry_none_makes_the_first_failure_final(app: QWorker) -> None:
    """With `Retry.none()` a failure is dead at once, but `raise Retry` still asks for another try."""
    app.task(name="fail", retry=Retry.none())(raising(ValueError())).send()
    app.task(name="ask", retry=Retry.none(), queue="other")(raising(Retry("1m"))).send()

    drain(app)

    assert app.queue("default").inspect().dead == 1
    assert app.queue("other").inspect().delayed == 1


@pytest.mark.parametrize(
    ("queue", "task", "message", "starts"),
    [(4, None, None, 4), (4, 3, None, 3), (4, 3, 2, 2), (2, 3, None, 3), (1, None, None, 1)],
)
def test_max_receives_of_a_message_is_over_its_tasks_and_that_over_the_queues(
    app: QWorker, queue: int, task: int | None, message: int | None, starts: int
) -> None:
    """A message that always fails starts as often as its own limit says, else its task's, else its queue's."""
    started = []

    @app.task(max_receives=task, retry=Retry.fixed("1m"))
    def fail() -> None:
        started.append(1)
        raise ValueError

    app.queue("default").configure(QueueAttributes(max_receives=queue))
    fail.options(**({} if message is None else {"max_receives": message})).send()
    for _ in range(6):
        drain(app)
        make_due(app)

    assert len(started) == starts
    (letter,) = app.queue("default").dead()
    assert letter.reason == "max_receives"


def test_a_raised_limit_of_the_queue_holds_at_once(app: QWorker) -> None:
    """A child that runs already goes by a queue's new max receives."""
    started = []

    @app.task(retry=Retry.fixed(0))
    def fail() -> None:
        started.append(1)
        if len(started) == 1:
            app.queue("default").configure(QueueAttributes(max_receives=3))
        raise ValueError

    app.queue("default").configure(QueueAttributes(max_receives=2))
    fail.send()

    drain(app)

    assert len(started) == 3


# -- messages that no handler gets -------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"task": "add", "args": ["x"]}, "add(n)"),
        ({"task": "add", "args": [1, 2]}, "got 2 arguments"),
        ({"task": "add"}, "is missing"),
        ({"task": "add", "kwargs": {"m": 1}}, "is not a parameter"),
        ({"task": "add", "args": 5}, "is not an array"),
        ({"no": "task"}, "cannot be read"),
        ([1, 2], "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_arguments_that_do_not_fit_are_dead_at_once(app: QWorker, body: Any, words: str) -> None:
    """A message whose arguments do not fit its task is not retried: it is dead, with the argument's name."""
    app.task(name="add")(_add)
    app.queue("default").send(body)

    drain(app)

    (letter,) = app.queue("default").dead()
    assert letter.reason == "bad_arguments"
    assert words in letter.error


class Look(TypedDict, total=False):
    colour: str


def test_keys_of_every_send_come_back_as_they_were(app: QWorker) -> None:
    """Keys that are numbers and UUIDs arrive as such, sent by any way; keys that nobody declared bury the message."""
    seen: list[Any] = []
    key = UUID(int=7)

    @app.task
    def sync(sizes: dict[int, dict[UUID, str]], look: Look) -> None:
        seen.append(sizes)

    @app.task
    async def coroutine(sizes: dict[int, dict[UUID, str]]) -> None:
        seen.append(sizes)

    @app.task(queue="batches", batch=10)
    def batch(sizes: list[dict[int, dict[UUID, str]]]) -> None:
        seen.extend(sizes)

    async def send() -> None:
        await sync.asend({2: {key: "a"}}, look={})
        await coroutine.asend_many([coroutine.call({3: {key: "a"}})])

    sync.send({1: {key: "a"}}, {"colour": "red"})
    asyncio.run(send())
    batch.send_many([batch.call({4: {key: "a"}})])
    app.queue("default").send({"task": "sync", "args": [{}, {"color": "red"}]})
    with pytest.raises(ArgumentsError, match="has the key 'color'"):
        sync.send({}, {"color": "red"})  # type: ignore[typeddict-unknown-key]

    drain(app)

    assert sorted(seen, key=list) == [{n: {key: "a"}} for n in (1, 2, 3, 4)]
    (letter,) = app.queue("default").dead()
    assert letter.reason == "bad_arguments"
    assert "sync(look): has the key 'color', which Look does not declare" in letter.error


def _add(n: int) -> int:
    return n + 1


def test_a_foreign_item_is_dead_and_harms_nobody(app: QWorker) -> None:
    """What is neither ours nor JSON goes to the dead letters with its bytes; the messages around it are handled."""
    handled = []
    task = app.task(name="task")(lambda n: handled.append(n))
    keys = QueueKeys(app.namespace, "default")
    task.send(1)
    with redis_of(app) as redis:
        redis.rpush(keys.ready[0], "hello", "q1 but the rest is missing\n", "q1 x y z\n{}")
    task.send(2)

    drain(app)

    assert handled == [1, 2]
    assert [letter.reason for letter in app.queue("default").dead()] == ["foreign"] * 3


def test_a_message_pushed_as_bare_json_is_handled_and_can_fail(app: QWorker) -> None:
    """`RPUSH` of a JSON call by any client is a message: it is handled, retried, and has an id when it is dead."""
    handled = []

    @app.task(max_receives=2, retry=Retry.fixed(0))
    def plain(n: int) -> None:
        handled.append(n)
        if n == 2:
            raise ValueError

    ready = QueueKeys(app.namespace, "default").ready[0]
    with redis_of(app) as redis:
        redis.rpush(
            ready, '{"task": "plain", "args": [1]}', '{"task": "plain", "kwargs": {"n": 2}}'
        )

    drain(app)

    assert handled == [1, 2, 2]
    (letter,) = app.queue("default").dead()
    assert letter.message is not None
    assert letter.message.nacks == 2
    assert history_of(app.queue("default"))["acked"] == 1


def test_equal_plain_messages_stay_two(app: QWorker) -> None:
    """Two equal pushed messages that fail are still two when they come back."""
    handled = []

    @app.task(retry=Retry.fixed("1m"))
    def twice() -> None:
        handled.append(1)
        if len(handled) <= 2:
            raise ValueError

    with redis_of(app) as redis:
        redis.rpush(QueueKeys(app.namespace, "default").ready[0], *['{"task": "twice"}'] * 2)
    drain(app)
    make_due(app)
    drain(app)

    assert len(handled) == 4


def test_a_message_past_its_time_to_live_is_not_started(app: QWorker) -> None:
    """What has expired before it was received never reaches its handler, and is counted as expired."""
    handled = []
    task = app.task(name="task")(lambda: handled.append(1))
    task.options(ttl="10ms").send()
    task.send()
    until(lambda: app.queue("default").peek()[0].at_ms is None)
    seen = app.queue("default")

    def is_over() -> bool:
        return seen.inspect().oldest_age_s > 0.02

    until(is_over)

    drain(app)

    assert len(handled) == 1
    assert history_of(app.queue("default"))["expired"] == 1


# -- unique keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, Discard(), Bury()], ids=["ack", "discard", "bury"])
def test_the_end_of_a_message_frees_its_unique_key(app: QWorker, error: Exception | None) -> None:
    """A unique key keeps others out until its message has ended, however it ends."""

    def end() -> None:
        if error is not None:
            raise error

    task = app.task(end)
    first = task.options(unique="a@b.c").send()
    assert task.options(unique="a@b.c").send() == first

    drain(app)

    assert task.options(unique="a@b.c").send() != first


# -- the mark of a delivery --------------------------------------------------------------------


def test_a_handler_that_is_cut_short_by_its_lease_leaves_its_message_to_others(
    app: QWorker,
) -> None:
    """An async handler whose lease is lost is cancelled, and its message is not nacked."""
    cancelled = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    slow.send()
    with running(app) as child:
        until(lambda: child.board.running())
        (view,) = child.board.running()
        child.board.lose(view.lease)
        until(lambda: cancelled)
        until(lambda: not child.board.held_leases() or not child.board.running())

    assert cancelled == [1]
    assert "nacked" not in history_of(app.queue("default"))
