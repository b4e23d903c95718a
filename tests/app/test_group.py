"""Groups of calls: the callback is sent once, with the values of all calls in order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from qworker import (
    BodyTooLargeError,
    Cancellation,
    Discard,
    Failure,
    GroupStartedError,
    IdTakenError,
    InvalidOptionError,
    Keyring,
    NoResultError,
    QueueAttributes,
    QWorker,
    ResultTimeoutError,
    StaleReceiptError,
    SyncRun,
    TaskEndedError,
    TaskFailedError,
    chain,
    group,
)
from qworker.app.task import Task
from qworker.client import cancel, cancel_calls
from qworker.client.cancel_calls import CancelledCalls
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import raw
from qworker.errors import OutOfMemoryError
from qworker.testing import drain
from tests.consumer.test_cancel import in_async_code


def tasks(app: QWorker, *queues: str) -> tuple[Task[..., Any], Task[..., Any]]:
    """A task for the calls, which fails for negative numbers and discards zero, and a callback."""
    calls, callbacks = queues or ("default", "default")

    @app.task(queue=calls, result="1h", max_receives=1)
    def square(number: int, more: int = 0) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        if number == 0:
            raise Discard("zero")
        return number * number + more

    @app.task(queue=callbacks, result="1h")
    def total(values: list[int | Failure], label: str = "") -> str:
        shown = [
            f"{value.state} {value.error} {value.task}".strip()
            if isinstance(value, Failure)
            else str(value)
            for value in values
        ]
        return f"{label}:{','.join(shown)}"

    return square, total


@pytest.mark.parametrize("queues", [("a", "b"), ("a", "a")])
def test_a_callback_gets_all_values_in_order(app: QWorker, queues: Any) -> None:
    """In one queue and over two; each message is sent and acked once."""
    square, total = tasks(app, *queues)
    handle = group(square.call(number) for number in range(1, 11)).then(total, "x").start()
    drained = drain(app)
    assert handle.result(0) == "x:" + ",".join(str(number * number) for number in range(1, 11))
    assert drained.handled == 11
    stats = [app.queue(name).inspect().stats for name in {*queues}]
    assert sum(each["sent"] for each in stats) == sum(each["acked"] for each in stats) == 11


def test_groups_are_started_from_async_code(app: QWorker) -> None:
    """With an async call and an async callback, too."""

    @app.task(result="1h")
    async def square(number: int) -> int:
        return number * number

    @app.task(result="1h")
    async def add(values: list[int]) -> int:
        return sum(values)

    async def start() -> tuple[Any, str]:
        calls = group((square.call(2), square.call(3)), policy="successes").then(add)
        started, sent = await calls.astart(), await calls.asend()
        await app.aclose()
        return started, sent

    handle, _ = asyncio.run(start())
    assert drain(app).handled == 6
    assert handle.result(0) == 13


def test_failures_are_values(app: QWorker) -> None:
    """Each stands in the place of its call, whether that is dead or was discarded."""
    square, total = tasks(app)
    handle = group(square.call(number) for number in (2, -1, 0, 3)).then(total).start()
    drain(app, errors="collect")
    assert handle.result(0) == ":4,dead ValueError square,discarded  square,9"


def test_a_failure_names_its_message(app: QWorker) -> None:
    """Queue, id, reason and text, so that its callback can report it."""
    square, _ = tasks(app, "calls", "ends")
    seen: list[Any] = []

    @app.task(queue="ends")
    def note(values: list[Any], *, by: str) -> None:
        seen.append((values, by))

    group_id = group([square.call(-1), square.call(1)]).then(note, by="me").send()
    drain(app, errors="collect")
    [([failure, one], by)] = seen
    assert (one, by) == (1, "me")
    assert isinstance(failure, Failure)
    assert (failure.queue, failure.task, failure.message_id) == ("calls", "square", f"{group_id}.0")
    assert (failure.state, failure.reason, failure.error) == ("dead", "max_receives", "ValueError")
    assert "-1 is negative" in failure.text


def test_a_group_of_successes_waits_for_a_dead_call(app: QWorker) -> None:
    """Its handle says which; a redrive completes the group, and the handle gets the result."""
    fails = True

    @app.task(queue="calls", result="1h", max_receives=1)
    def fetch(url: str) -> str:
        if fails and url == "b":
            raise OSError("away")
        return url.upper()

    @app.task(queue="ends", result="1h")
    def join(pages: list[str]) -> str:
        return "".join(pages)

    handle = group((fetch.call(url) for url in "abc"), policy="successes").then(join).start()
    drain(app, errors="collect")
    with pytest.raises(TaskFailedError, match="away") as caught:
        handle.result(0)
    assert (caught.value.step, caught.value.queue) == ("fetch", "calls")
    fails = False
    [dead] = app.queue("calls").dead()
    assert app.queue("calls").redrive(str(dead.entry))
    drain(app)
    assert handle.result(0) == "ABC"


@pytest.mark.slow
def test_a_call_that_is_edited_still_belongs_to_its_group(app: QWorker) -> None:
    """As a step still belongs to its chain, although the new body names neither; a callback still gets the values."""
    square, _ = tasks(app, "calls", "ends")

    @app.task(queue="ends", result="1h", max_receives=1)
    def add(values: list[int], more: int) -> int:
        if more < 0:
            raise ValueError("less")
        return sum(values) + more

    call = chain(square.call(-2), square.then())
    handle = group([call, square.call(3)], policy="successes").then(add, -1).start()
    drain(app, errors="collect")
    calls, ends = app.queue("calls"), app.queue("ends")
    [dead] = calls.dead()
    calls.redrive(calls.edit_dead(dead.entry_id, {"task": "square", "args": [2]}))
    drain(app, errors="collect")
    [dead] = ends.dead()
    ends.redrive(ends.edit_dead(dead.entry_id, b'{"task":"add","args":[1]} '))
    drain(app)
    assert handle.result(0) == 16 + 9 + 1


@pytest.mark.slow
def test_a_group_of_successes_ends_with_a_call_that_cannot_succeed(app: QWorker) -> None:
    """One that was discarded, or whose dead letter was dropped; its callback does not run, and nothing is kept."""
    square, _ = tasks(app, "calls", "ends")

    @app.task(queue="ends", result="1h")
    def add(values: list[int]) -> int:
        return sum(values)

    discarded = group([square.call(0), square.call(1)], policy="successes").then(add).start()
    drain(app)
    with pytest.raises(TaskEndedError, match="discarded"):
        discarded.result(0)
    dropped = group([square.call(-1), square.call(1)], policy="successes").then(add).start()
    drain(app, errors="collect")
    assert len(app.queue("ends").calls()) == 1
    [dead] = app.queue("calls").dead()
    assert app.queue("calls").drop_dead(str(dead.entry))
    drain(app)
    assert not app.queue("ends").calls()
    with pytest.raises(TaskFailedError, match="negative"):
        dropped.result(0)


@pytest.mark.slow
def test_the_first_success_is_enough(app: QWorker) -> None:
    """Its callback gets that value, once; the calls after it run without effect."""
    square, _ = tasks(app, "calls", "ends")
    seen: list[int] = []

    @app.task(queue="ends", result="1h")
    def take(value: int) -> int:
        seen.append(value)
        return value

    calls = [square.call(number) for number in (-1, 2, 3)]
    handle = group(calls, policy="first").then(take).start()
    drain(app, errors="collect")
    assert handle.result(0) in (4, 9)
    assert len(seen) == 1
    none = group([square.call(-1), square.call(0)], policy="first").then(take).start()
    drain(app, errors="collect")
    with pytest.raises(TaskFailedError, match="negative"):
        none.result(0)
    for dead in app.queue("calls").dead():
        app.queue("calls").drop_dead(str(dead.entry))
    drain(app)
    assert not app.queue("ends").calls()


@pytest.mark.slow
def test_the_first_success_cancels_the_rest(app: QWorker) -> None:
    """Calls and steps of chains that wait, in any queue, are dropped; what has ended stays as it is."""
    square, _ = tasks(app, "calls", "ends")
    ran: list[tuple[str, int]] = []

    @app.task(queue="far", result="1h")
    def slow(number: int) -> int:
        ran.append(("slow", number))
        return number

    @app.task(queue="late", result="1h")
    def later(number: int) -> int:
        ran.append(("later", number))
        return number

    @app.task(queue="ends", result="1h")
    def take(value: int) -> int:
        return value

    calls = [
        square.call(-1),
        square.call(2),
        slow.call(3),
        chain(slow.call(4), later.then()),
        chain(square.call(5), later.then()),
        slow.options(delay="1h").call(6),
    ]
    handle = group(calls, policy="first", cancel_rest=True).then(take).start()
    [shown] = app.queue("ends").calls()
    assert shown.cancel_rest
    # When the second call decides, the last chain is at its second step, and nothing has served the other queues.
    drain(app, queues=["calls"], include_delayed=False, errors="collect")
    decided = app.queue("ends").call_group(handle.id)
    assert decided is not None
    assert (decided.state, decided.cancel_rest) == ("decided", True)
    drain(app, queues=["ends"], include_delayed=False)
    assert handle.result(0) == 4
    drain(app)
    assert ran == []
    assert [letter.message.id for letter in app.queue("calls").dead()] == [f"{handle.id}.0"]
    assert not any(
        app.queue(name).peek(state=state) for name in ("far", "late") for state in WAITING
    )
    # A dropped message takes its tombstone along; those of steps that are past, or never come, go in a day.
    assert {name: marks(app, name) for name in ("calls", "far", "late")} == {
        "calls": [f"{handle.id}.4"],
        "far": [],
        "late": [f"{handle.id}.3-1"],
    }


def test_the_rest_of_a_group_never_runs_however_late_it_is_due(app: QWorker) -> None:
    """Its tombstones are kept for a day: what is due after that is deleted before they are forgotten."""
    square, _ = tasks(app, "calls", "ends")
    calls = [square.call(2), square.options(delay="3d").call(3)]
    handle = group(calls, policy="first", cancel_rest=True).then(square).start()
    drain(app, queues=["calls"], include_delayed=False)
    queue = app.queue("calls")
    assert (marks(app, "calls"), len(queue.peek(state="delayed"))) == ([f"{handle.id}.1"], 1)
    app.client.ask("ZADD", queue.ref.keys.cancelled, 1, f"{handle.id}.1")
    while marks(app, "calls"):
        queue.reap()
    assert queue.inspect().stored == 0
    assert queue.inspect().stats["cancelled"] == 1


@pytest.mark.slow
def test_a_group_of_several_parts_knows_where_all_of_its_calls_are(app: QWorker) -> None:
    """Each part names the steps of its own chains."""
    square, _ = tasks(app, "calls", "ends")

    @app.task(queue="late", result="1h")
    def later(number: int) -> int:
        return number

    calls = [chain(square.call(1), later.then()) for _ in range(1001)]
    handle = group(calls, policy="first", cancel_rest=True).then(later).start()
    join = app.queue("late").ref.keys.join(handle.id)
    rest = msgspec.msgpack.decode(app.client.ask("HGET", join, "@rest"), type=dict[str, str])
    assert {queue: parts.split() for queue, parts in rest.items()} == {
        "calls": [str(number) for number in range(1001)],
        "late": [f"{number}-1" for number in range(1001)],
    }


WAITING = ("ready", "delayed")


def marks(app: QWorker, queue: str) -> list[str]:
    """The messages of a queue that are cancelled when they are next read."""
    key = app.queue(queue).ref.keys.cancelled
    return sorted(name.decode() for name in app.client.ask("ZRANGE", key, 0, -1))


@pytest.mark.slow
def test_groups_and_chains_are_parts_of_each_other(app: QWorker) -> None:
    """A chain as a call, a group as a call, as the first and as a later step of a chain."""
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="mid", result="1h")
    def count(text: str) -> int:
        return len(text)

    inner = group([square.call(1), square.call(2)]).then(total, "in")
    outer = group(
        [square.call(3), chain(square.call(2), square.then(5)), chain(inner, count.then())]
    ).then(total, "out")
    handle = outer.start()
    drain(app)
    assert handle.result(0) == f"out:9,21,{len('in:1,4')}"

    @app.task(queue="mid", result="1h")
    def shout(text: str) -> str:
        return text.upper()

    through = chain(
        outer,
        count.then(),
        group([square.then(1), square.then(2)]).then(total, "later"),
        shout.then(),
    ).start()
    drain(app)
    number = len(f"out:9,21,{len('in:1,4')}")
    assert through.result(0) == f"LATER:{number**2 + 1},{number**2 + 2}"


def test_a_chain_in_a_group_fails_with_its_step(app: QWorker) -> None:
    """The failure names the step that failed; those after it do not run."""
    square, total = tasks(app, "calls", "ends")
    broken = chain(square.call(1), square.then(-1), square.then())
    group_id = group([broken, square.call(2)]).then(total).start().id
    drain(app)
    assert app.handle("ends", group_id).result(0) == ":discarded  square,4"


def test_a_nested_group_that_fails_is_a_failure(app: QWorker) -> None:
    """Of the group around it, which then goes on; a redrive has no effect any more."""
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="ends", result="1h")
    def add(values: list[int]) -> int:
        return sum(values)

    inner = group([square.call(-1), square.call(2)], policy="successes").then(add)
    handle = group([inner, square.call(3)]).then(total).start()
    drain(app, errors="collect")
    assert handle.result(0) == ":dead ValueError square,9"


def test_a_group_is_started_once_by_its_own_id(app: QWorker) -> None:
    """Twice with the same calls is once, also after its end; other calls are refused."""
    square, total = tasks(app, "calls", "ends")

    def calls(last: int = 3) -> Any:
        return group([square.call(1), square.call(last)]).then(total)

    first, again = calls().start(id="video-17"), calls().start(id="video-17")
    assert (first, first.id) == (again, "video-17")
    with pytest.raises(GroupStartedError, match="video-17"):
        calls(4).start(id="video-17")
    assert drain(app).handled == 3
    assert calls().start(id="video-17").result(0) == ":1,9"
    assert drain(app).handled == 0
    with pytest.raises(GroupStartedError):
        calls(4).send(id="video-17")


def test_a_group_and_a_run_of_one_queue_have_different_ids(app: QWorker) -> None:
    """They would share a result: the second start is refused, and nothing of it is written."""
    square, total = tasks(app, "calls", "ends")

    @app.workflow(queue="ends", result="1h")
    def order(run: SyncRun, number: int) -> int:
        return number

    calls = group([square.call(1)]).then(total)
    calls.start(id="g")
    before = app.queue("ends").inspect().stored
    with pytest.raises(IdTakenError, match="a group of calls of queue 'ends' has the id g"):
        order.options(id="g").start(1)
    assert app.queue("ends").inspect().stored == before
    order.options(id="r").start(1)
    with pytest.raises(IdTakenError, match="a run of queue 'ends' has the id r"):
        calls.start(id="r")
    assert app.queue("ends").call_group("r") is None
    handle = order.handle("r")
    drain(app)
    assert handle.result(0) == 1
    with pytest.raises(IdTakenError):  # its steps are still kept
        calls.start(id="r")


def test_an_id_that_is_free_again_starts_the_group_again(app: QWorker) -> None:
    """Its queue still knows the number of the earlier start: a day after its end nothing else is left."""
    square, total = tasks(app, "calls", "ends")
    calls = group([square.call(1), square.call(3)]).then(total)
    handle = calls.start(id="nightly")
    assert drain(app).handled == 3
    keys = app.queue(handle.queue).keys
    with app.client.factory.redis(keys.meta) as redis:
        assert redis.delete(keys.join("nightly"), keys.result("nightly")) == 2

    again = calls.start(id="nightly")
    assert drain(app).handled == 3
    assert again.result(0) == ":1,9"


@pytest.mark.slow
def test_thousands_of_calls_are_one_group(app: QWorker) -> None:
    """They are sent in parts, of which each is atomic."""
    square, _ = tasks(app, "calls", "ends")

    @app.task(queue="ends", result="1h")
    def add(values: list[int]) -> int:
        return sum(values)

    handle = group((square.call(1, n) for n in range(1200)), policy="successes").then(add).start()
    assert drain(app, max_messages=5000).handled == 1201
    assert handle.result(0) == 1200 + sum(range(1200))


def test_values_are_signed_and_encrypted(store_url: str, namespace: str) -> None:
    """As messages are, if the app has keys."""
    keyring = Keyring(signing={"s": b"s" * 32}, encryption={"e": b"e" * 32})
    app = QWorker(namespace, url=store_url, keys=keyring)
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="ends", result="1h")
    def add(values: list[int]) -> int:
        return sum(values)

    inner = group([square.call(2), square.call(3)], policy="successes").then(add)
    handle = group([square.call(7), inner, square.call(-1)]).then(total).start()
    drain(app, errors="collect")
    assert handle.result(0) == ":49,13,dead ValueError square"
    app.close()


def test_what_cannot_be_a_group_is_refused(app: QWorker) -> None:
    """Before anything is sent, with the limit and what to do."""
    square, total = tasks(app, "calls", "ends")

    @app.task
    def plain() -> None: ...

    @app.task(queue="ends")
    def add(values: list[int]) -> int:
        return sum(values)

    @app.workflow(queue="ends")
    def flow(run: Any, values: list[Any]) -> None: ...

    with pytest.raises(InvalidOptionError, match="has no calls"):
        group([])
    with pytest.raises(InvalidOptionError, match=r"10,001 calls.*10,000"):
        group(square.call(1) for _ in range(10_001))
    with pytest.raises(InvalidOptionError, match="policy"):
        group([square.call(1)], policy="some")  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match=r"cancel_rest: .*policy='first'"):
        group([square.call(1)], cancel_rest=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="cancel_rest: 1 is not a bool"):
        group([square.call(1)], policy="first", cancel_rest=1)  # type: ignore[call-overload]
    inner = group([square.call(1)]).then(total)
    for first in (inner, chain(inner, total.then())):
        with pytest.raises(InvalidOptionError, match=r"cancel_rest: .*call 1 of the group"):
            group([square.call(1), first], policy="first", cancel_rest=True).then(square)
    long = chain(square.call(1), *[square.then()] * 5)
    with pytest.raises(InvalidOptionError, match=r"cancel_rest: .*60,000 calls.*10,000"):
        group([long] * 10_000, policy="first", cancel_rest=True).then(square)
    with pytest.raises(NoResultError, match="plain"):
        group([plain.call()]).then(total)
    with pytest.raises(InvalidOptionError, match="failures"):
        group([square.call(1)]).then(add)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="is a run"):
        group([square.call(1)]).then(flow)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="unique"):
        group([square.options(unique="x").call(1)]).then(total)
    with pytest.raises(NoResultError):
        group([square.call(1)], policy="successes").then(add).start()
    with pytest.raises(InvalidOptionError, match="call 1 of the group"):
        group([square.call(1), square.then()])  # type: ignore[arg-type]
    nested = group([square.call(1)]).then(total)
    for _ in range(3):
        nested = group([nested]).then(total)
    with pytest.raises(InvalidOptionError, match="5 deep"):
        group([nested]).then(total)
    with pytest.raises(InvalidOptionError, match="at most 55"):
        group([square.call(1)]).then(total).send(id="x" * 60)
    app.queue("calls").configure(QueueAttributes(maxsize=1024))
    with pytest.raises(BodyTooLargeError, match="calls"):
        group([square.options(priority=1).call(10**2000)]).then(total).send()
    assert app.queue("calls").inspect().stats.get("sent", 0) == 0
    with pytest.raises(ResultTimeoutError):
        app.handle("ends", "none").result(0)


@pytest.mark.slow
def test_a_bare_client_ends_calls_with_their_values(store_url: str, namespace: str) -> None:
    """As a worker does, also steps of chains and callbacks; a plain ack is refused, and a pop counts as a discard."""
    keyring = Keyring(signing={"s": b"s" * 32}, encryption={"e": b"e" * 32})
    for keys in (None, keyring):
        app = QWorker(namespace, url=store_url, keys=keys)
        square, total = tasks(app, "calls", "ends")
        calls = app.queue("calls")
        members = [chain(square.call(2), square.then()), square.call(3), square.call(4)]
        handle = group(members).then(total).start()
        first, second, third = calls.receive(3)
        with pytest.raises(InvalidOptionError, match=r"queue.complete\(message, value\)"):
            calls.ack(first, second)
        assert calls.inspect().unacked == 3
        calls.complete(first, 4)
        calls.complete(second, 9)
        with pytest.raises(StaleReceiptError):
            calls.complete(second, 10)
        [next_step] = calls.receive()
        assert next_step.json()["args"] == [4]
        calls.complete(next_step, 16)
        calls.release(third)
        assert [message.id for message in calls.pop()] == [third.id]
        drain(app, queues=["calls"])
        [callback] = app.queue("ends").receive()
        with pytest.raises(InvalidOptionError, match="ack"):
            app.queue("ends").ack(callback)
        app.queue("ends").release(callback)
        drain(app)
        assert handle.result(0) == ":16,9,discarded  square"
        handle = group([square.call(1)]).then(total).start()
        drain(app, queues=["calls"])
        app.queue("ends").complete(*app.queue("ends").receive(), "by hand")
        assert handle.result(0) == "by hand"
        assert app.queue("ends").call_group(handle.id) is None
        app.close()


def nested(app: QWorker) -> tuple[Any, Any]:
    """A group with a chain, a group and a call that has ended, over three queues."""
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="mid", result="1h")
    def same(number: int) -> int:
        return number

    inner = group([same.call(1), chain(square.call(1), same.then())]).then(total, "in")
    return group([square.call(2), chain(square.call(1), same.then()), inner]).then(total), square


def test_a_group_is_cancelled_with_all_of_its_calls(app: QWorker) -> None:
    """Also those of chains and groups in it; its id stays taken, and a second cancel finds nothing."""
    calls, square = nested(app)
    handle = calls.start(id="video-17")
    other = group([square.call(3)]).then(app.tasks["total"]).start(id="video-170")
    queue = app.queue("ends")
    drain(app, queues=["calls"], max_messages=2)
    [running] = app.queue("calls").receive()
    done = queue.cancel_calls("video-17")
    assert done is not None
    # Two messages wait in mid: the second step of the first chain, and the first call of the inner group.
    assert (done.cancelled, done.cancelling, done.too_late) == (2, 1, 1)
    assert queue.cancel_calls("video-17") == CancelledCalls(0, 1, 0)
    app.queue("calls").release(running)
    assert drain(app).handled == 2  # of the other group
    assert other.result(0) == ":9"
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    assert app.queue("ends").calls() == []
    with pytest.raises(GroupStartedError):
        group([square.call(2)]).then(app.tasks["total"]).start(id="video-17")
    assert queue.cancel_calls("none") is None


@pytest.mark.slow
def test_thousands_of_calls_are_cancelled_in_few_trips(app: QWorker) -> None:
    """In whichever queues they wait, are due later or run, each is read once; messages between them stay."""
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="more", result="1h")
    def other(number: int) -> int:
        return number

    calls, more = app.queue("calls"), app.queue("more")
    later = square.options(delay="1h")
    members = [each.call(number) for number in range(1, 701) for each in (square, other, later)]
    handle = group(members).then(total).start()
    calls.receive(30)
    for number in range(1, 21):
        square.send(number)
        other.send(number)
    others = group([square.call(number) for number in range(1, 51)]).then(total).start()
    steps: list[Any] = []
    plan = counted(cancel_calls.cancel_calls(app.queue("ends").ref, handle.id), steps)
    assert app.client.run(plan) == CancelledCalls(2070, 30, 0)
    assert len(steps) <= 64
    assert app.queue("ends").calls()[0].id == others.id
    assert len(calls.peek(1000)) == 70
    assert len(more.peek(1000)) == 20
    assert not calls.peek(state="delayed")
    assert len(marks(app, "calls")) == 30
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)


def counted(plan: Any, steps: list[Any]) -> Any:
    """Note the steps of a plan, of which each is a trip."""
    reply = None
    try:
        while True:
            step = plan.send(reply)
            steps.append(step)
            reply = yield step
    except StopIteration as end:
        return end.value


def test_a_decided_group_cannot_be_abandoned(app: QWorker) -> None:
    """Its callback gets the values nevertheless."""
    square, total = tasks(app, "calls", "ends")
    handle = group([square.call(1), square.call(2)]).then(total).start()
    drain(app, queues=["calls"])
    assert not app.queue("ends").abandon_calls(handle.id)
    assert app.queue("ends").cancel_calls(handle.id) == CancelledCalls(0, 0, 2)
    drain(app)
    assert handle.result(0) == ":1,4"


def test_calls_that_were_not_sent_yet_are_cancelled(app: QWorker) -> None:
    """They wait in an outbox, because their queue is paused, and so does a group that has not begun."""
    square, total = tasks(app, "calls", "ends")

    @app.task(queue="inner", result="1h")
    def joined(values: list[Any]) -> str:
        return "never"

    for name in ("calls", "inner"):
        app.queue(name).pause("in")
    inner = group([square.call(5)]).then(joined)
    handle = group([*(square.call(n) for n in range(1, 4)), inner]).then(total).start()
    done = app.queue("ends").cancel_calls(handle.id)
    assert done is not None
    assert (done.cancelling, done.too_late) == (0, 0)
    for name in ("calls", "inner"):
        app.queue(name).resume()
    assert drain(app).handled == 0
    assert not app.queue("ends").outboxes()
    assert done.cancelled == 4


def test_a_handle_cancels_its_group(app: QWorker) -> None:
    """From async code, too; a group whose callback was sent has its callback cancelled."""
    square, total = tasks(app, "calls", "ends")
    handle = group([square.call(1), square.call(2)]).then(total).start()
    assert handle.cancel() is Cancellation.CANCELLED
    assert drain(app).handled == 0

    async def later() -> None:
        handle = await group([square.call(1)]).then(total).astart()
        await asyncio.to_thread(drain, app, queues=["calls"])
        assert await handle.acancel() is Cancellation.CANCELLED
        await app.aclose()

    asyncio.run(later())
    assert drain(app).handled == 0


@pytest.mark.parametrize("by", ["handle", "async handle", "id"])
def test_an_interrupted_cancel_can_be_repeated(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A server that was full after the group had ended left its calls; the same cancel finds them later."""
    square, total = tasks(app, "calls", "ends")
    handle = group([square.call(1), square.call(2)]).then(total).start()

    def cancel() -> Cancellation:
        if by == "async handle":
            return asyncio.run(in_async_code(app, handle))
        return handle.cancel() if by == "handle" else app.queue("ends").cancel(handle.id)

    def full(*_: object) -> Plan[None]:
        raise OutOfMemoryError("the server has reached maxmemory")
        yield

    monkeypatch.setattr(cancel_calls, "_cancel_in", full)
    with pytest.raises(OutOfMemoryError):
        cancel()
    monkeypatch.undo()
    [running] = app.queue("calls").receive()
    assert cancel() is Cancellation.CANCELLING
    app.queue("calls").release(running)
    assert drain(app).handled == 0
    assert cancel() is Cancellation.CANCELLED


def test_a_repeated_cancel_answers_for_the_calls_that_it_finds(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback keeps no result that could tell that the group was cancelled; with no calls left, it is too late."""
    square, _ = tasks(app, "calls", "ends")

    @app.task(queue="ends")
    def note(values: list[Any]) -> None:
        pytest.fail("its group was cancelled")

    group_id = group([square.call(1), square.call(2)]).then(note).send()
    original = cancel_calls._cancel_in

    def interrupted(*_: object) -> Plan[None]:
        raise OutOfMemoryError("the server has reached maxmemory")
        yield

    monkeypatch.setattr(cancel_calls, "_cancel_in", interrupted)
    with pytest.raises(OutOfMemoryError):
        app.queue("ends").cancel(group_id)
    monkeypatch.setattr(cancel_calls, "_cancel_in", original)
    assert app.queue("ends").cancel(group_id) is Cancellation.CANCELLED
    assert drain(app).handled == 0
    assert app.queue("ends").cancel(group_id).too_late


def test_a_cancel_finds_a_step_that_moves_to_a_queue_that_was_searched(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a chain ends after the search of the queue of the second one, and before that of its own."""
    square, total = tasks(app, "calls", "ends")
    ran, searched = list[int](), list[str]()
    search = cancel_calls.cancel_messages

    @app.task(queue="late", result="1h")
    def later(number: int) -> int:
        ran.append(number)
        return number

    def one_after_the_other(shard: QueueRef, *rest: Any) -> Plan[None]:
        while shard.keys.name == "calls" and "late" not in searched:
            yield raw("EXISTS", shard.keys.meta)
        yield from search(shard, *rest)
        if shard.keys.name == "late" and "late" not in searched:
            drain(app, queues=["calls"])
        searched.append(shard.keys.name)

    monkeypatch.setattr(cancel_calls, "cancel_messages", one_after_the_other)
    handle = group([later.call(1), chain(square.call(2), later.then())]).then(total).start()
    assert handle.cancel() is Cancellation.CANCELLED
    drain(app)
    assert ran == []


def test_a_cancel_beside_another_one_says_what_still_runs(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty clients, the one that ends the group is not the only one whose answer counts."""
    square, total = tasks(app, "calls", "ends")
    handle = group([square.call(1), square.call(2)]).then(total).start()
    [running] = app.queue("calls").receive()
    open_group = cancel.cancel_open_group

    def second(queue: QueueRef, group_id: str) -> Plan[Cancellation | None]:
        other: Cancellation | None = yield from open_group(queue, group_id)
        assert other is Cancellation.CANCELLING
        return (yield from open_group(queue, group_id))

    monkeypatch.setattr(cancel, "cancel_open_group", second)
    assert handle.cancel() is Cancellation.CANCELLING
    app.queue("calls").release(running)
    assert drain(app).handled == 0


@pytest.mark.slow
def test_a_queue_that_is_removed_ends_what_waits_for_its_messages(app: QWorker) -> None:
    """Calls and dead letters of it are failures of their groups, and so are groups whose callback it is to get."""
    square, total = tasks(app, "calls", "ends")
    waiting = group([square.call(1), square.call(-1)]).then(total).start()
    drain(app, queues=["calls"], max_messages=1, errors="collect")
    message = app.queue("calls").receive(1)
    app.queue("calls").remove()
    drain(app)
    assert waiting.result(0) == ":1,purged  square"
    assert message

    @app.task(queue="ends", result="1h")
    def add(values: list[int]) -> int:
        return sum(values)

    dead = group([square.call(-1)], policy="successes").then(add).start()
    drain(app, errors="collect")
    assert app.queue("ends").call_group(dead.id).state == "blocked"  # type: ignore[union-attr]
    app.queue("calls").remove()
    drain(app)
    assert not app.queue("ends").calls()
    left = group([square.call(1)]).then(total).start()
    outer = group([group([square.call(1)]).then(total)]).then(total)
    assert outer
    app.queue("ends").remove()
    with pytest.raises(TaskEndedError, match="purged"):
        left.result(0)
    drain(app)


def test_a_group_shows_where_it_stands(app: QWorker) -> None:
    """What it waits for, and which calls are dead, until its callback is sent."""
    square, total = tasks(app, "calls", "ends")
    handle = group([square.call(1), square.call(-1), square.call(2)]).then(total).start()
    queue = app.queue("ends")
    [status] = queue.calls()
    assert (status.id, status.state, status.left, status.size) == (handle.id, "running", 3, 3)
    drain(app, queues=["calls"], max_messages=2, errors="collect")
    drain(app, queues=["ends"])
    later = queue.call_group(handle.id)
    assert later is not None
    assert (later.state, later.left, later.dead) == ("running", 1, (1,))
    drain(app)
    assert (queue.calls(), queue.call_group(handle.id)) == ([], None)


def test_a_group_without_a_callback_says_what_is_missing(app: QWorker) -> None:
    """Users of other libraries write `group(…).start()`, and give one call."""
    square, _ = tasks(app)
    bare: Any = group([square.call(1)])
    for name in ("start", "send", "astart", "asend"):
        with pytest.raises(AttributeError, match=rf"group\(…\)\.then\(task\)\.{name}"):
            getattr(bare, name)
    with pytest.raises(AttributeError, match="'Group' object has no attribute 'results'"):
        _ = bare.results
    one: Any = square.call(1)
    with pytest.raises(InvalidOptionError, match=r"is not a list of calls; write group\("):
        group(one)
