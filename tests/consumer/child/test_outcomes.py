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
from qworker.consumer.board.board import Board
from qworker.consumer.child.leases import ending_kinds
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.consumer.child.leases.lease import Lease
from qworker.engine.receive import Batch
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain, history_of, make_due, redis_of, running, until


def raising(error: BaseException) -> Any:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.bad_input("handler: result that JSON cannot carry")
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


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
def test_a_dead_letter_has_the_raised_error(app: QWorker, kind: str) -> None:
    """The dead letter of a failure has the class, the traceback from the handler on, and the receive count."""

    def fail(n: int) -> None:
        raise LookupError(f"nothing under {n}")

    async def afail(n: int) -> None:
        fail(n)

    def fail_all(numbers: list[int]) -> None:
        fail(numbers[0])

    handler: Any = {"sync": fail, "async": afail, "batch": fail_all}[kind]
    batch = 5 if kind == "batch" else None
    task: Any = app.task(name="fail", max_receives=1, batch=batch)(handler)
    task.send(7)

    drain(app)

    (dead_letter,) = app.queue("default").dead()
    assert (dead_letter.reason, dead_letter.error_class) == ("max_receives", "LookupError")
    first, frame, *_ = dead_letter.error.splitlines()
    assert first == "Traceback (most recent call last):"
    assert frame.startswith(f'  File "{__file__}", line ')
    assert dead_letter.error.endswith("LookupError: nothing under 7")
    assert dead_letter.message is not None
    assert (dead_letter.message.receives, dead_letter.message.nacks) == (1, 1)


def test_bury_and_discard_record_their_reason(app: QWorker, capsys: Any) -> None:
    """The reason of `Bury` stands in the dead letter, without a traceback."""
    app.task(name="bury")(raising(Bury("the account is closed"))).send()

    drain(app)

    (dead_letter,) = app.queue("default").dead()
    assert (dead_letter.reason, dead_letter.error_class, dead_letter.error) == (
        "rejected",
        "Bury",
        "the account is closed",
    )


class UnspeakableError(Exception):
    """An error that cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.bad_input("handler: error without words, or with 10 MB of them")
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
def test_a_huge_error_is_shortened_to_2_kib(app: QWorker, error: Exception, words: str) -> None:
    """An error whose text raises, is huge or is not text costs neither the message nor the worker anything."""
    app.task(name="task", max_receives=1)(raising(error)).send()

    drain(app)

    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.error_class == type(error).__name__
    assert words in dead_letter.error
    assert len(dead_letter.error) <= 2048


@pytest.mark.bad_input("surroundings: recursion without end")
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
    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.reason == "max_receives"


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


@pytest.mark.bad_input(
    "body or key: arguments that do not fit", "data found: arguments that do not fit"
)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"task": "add", "args": ["x"]}, "add(n)"),
        ({"task": "add", "args": [1, 2]}, "got 2 positional arguments"),
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

    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.reason == "bad_arguments"
    assert words in dead_letter.error


class Look(TypedDict, total=False):
    colour: str


def test_keys_of_every_send_come_back_as_they_were(app: QWorker) -> None:
    """Keys that are numbers and UUIDs arrive as such, sent by any way; undeclared keys bury the message."""
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
        await app.aclose()

    sync.send({1: {key: "a"}}, {"colour": "red"})
    asyncio.run(send())
    batch.send_many([batch.call({4: {key: "a"}})])
    app.queue("default").send({"task": "sync", "args": [{}, {"color": "red"}]})
    with pytest.raises(ArgumentsError, match="has the key 'color'"):
        sync.send({}, {"color": "red"})  # type: ignore[typeddict-unknown-key]

    drain(app)

    assert sorted(seen, key=list) == [{n: {key: "a"}} for n in (1, 2, 3, 4)]
    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.reason == "bad_arguments"
    assert "sync(look): has the key 'color', which Look does not declare" in dead_letter.error


def _add(n: int) -> int:
    return n + 1


@pytest.mark.bad_input("data found: foreign push")
def test_a_foreign_item_is_dead_and_harms_no_message(app: QWorker) -> None:
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
    assert [dead_letter.reason for dead_letter in app.queue("default").dead()] == ["foreign"] * 3


@pytest.mark.bad_input("data found: JSON that anybody pushed")
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
    (dead_letter,) = app.queue("default").dead()
    assert dead_letter.message is not None
    assert dead_letter.message.nacks == 2
    assert history_of(app.queue("default"))["acked"] == 1


@pytest.mark.bad_input("data found: JSON that anybody pushed")
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
        until(lambda: child.board.running.views())
        (view,) = child.board.running.views()
        child.board.leases.lose(view.lease)
        until(lambda: cancelled)
        until(lambda: not child.board.leases.views() or not child.board.running.views())

    assert cancelled == [1]
    assert "nacked" not in history_of(app.queue("default"))


@pytest.mark.parametrize(("number", "acks"), [(1, ["0"]), (2, []), (40, [])])
def test_a_batch_is_acked_as_a_whole_and_one_alone_by_its_index(
    number: int, acks: list[str]
) -> None:
    """Each has a short way of its own in the scripts."""
    indices = [str(n) for n in range(1, number + 1)] if number > 1 else ["0"]
    queue = QueueState(QueueKeys("ns", "q"), 0, visibility_s=30.0)
    batch = Batch("a-1", [b"x"] * number, indices, 1, 30_001, 0, 0, False, False, ())
    board = Board.create(1)
    lease = Lease(board, 0, queue, batch, 30.0)
    lease.outcomes.acks += indices
    outcomes, ended = lease.take_outcomes()
    board.close()
    assert (outcomes.ack_all, outcomes.acks, ended) == (number > 1, acks, number)


def test_acks_of_a_batch_leave_what_is_to_expire(app: QWorker) -> None:
    """Those that end beside it are acked one by one, although no other is open."""

    @app.task(max_receives=1)
    def every_other(n: int) -> None:
        if n % 2:
            raise LetExpire

    every_other.send_many(every_other.call(n) for n in range(40))
    drain(app)

    assert history_of(app.queue("default")) == {
        "acked": 20,
        "received": 40,
        "sent": 40,
        "stored": 20,
        "unacked": 20,
    }


@pytest.mark.parametrize("messages", [1, 3])
def test_an_ack_waits_for_no_handler_of_another_queue(app: QWorker, messages: int) -> None:
    """While a handler has the thread, whatever ended before it was acked, and so counted by the server."""
    ended = {"first": 0, "second": 0}

    def acked(queue: str) -> int:
        return app.queue(queue).inspect().stats.get("acked", 0)

    def handle(own: str, other: str) -> None:
        # In the thread that sends acks: those of before are on their way, or come too late.
        until(lambda: acked(other) == ended[other], what=f"the acks of {other}")
        ended[own] += 1

    @app.task(queue="first", max_receives=1)
    def first() -> None:
        handle("first", "second")

    @app.task(queue="second", max_receives=1)
    def second() -> None:
        handle("second", "first")

    for _ in range(messages):
        first.send()
        second.send()
    drain(app)

    assert (acked("first"), acked("second")) == (messages, messages)


def test_each_kind_of_end_has_a_letter_of_its_own() -> None:
    """A delivery ends in one way: no two kinds share the letter that says which."""
    kinds = {
        name: letter
        for name, letter in vars(ending_kinds).items()
        if name.isupper() and isinstance(letter, str)
    }
    assert len(kinds) > 10
    assert len(set(kinds.values())) == len(kinds)
