"""Workflows: what a run does at each activation, and what it is given."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ForwardRef, Literal, Optional

import pytest

from qworker import (
    BadSignatureError,
    InvalidBodyError,
    InvalidNameError,
    InvalidOptionError,
    InvalidResultError,
    Keyring,
    Message,
    QWorker,
    Retry,
    Run,
    RunEndedError,
    RunUnknownError,
    SignalGivenError,
    SignalTimeoutError,
    SyncRun,
    TaskFailedError,
    current,
)
from qworker.client.inspect import peek
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.testing import advance, drain


@dataclass
class Payment:
    """What a step returns."""

    order: str
    cents: int


class FailingError(Exception):
    """What a workflow raises as often as a test wants."""


class Calls:
    """Functions that note their calls, and a failure of the workflow after them."""

    def __init__(self, failures: int = 0) -> None:
        self.made: list[Any] = []
        self.failures = failures

    def charge(self, order: str) -> Payment:
        """A step with a typed value."""
        self.made.append(order)
        return Payment(order, len(self.made))

    async def pay(self, order: str) -> Payment:
        """The same, async."""
        return self.charge(order)

    def fail(self) -> None:
        """Fail as often as wanted."""
        if self.failures:
            self.failures -= 1
            raise FailingError


def ran(app: QWorker) -> None:
    """Run all messages, through failures."""
    drain(app, errors="collect")


def stored(app: QWorker, message_id: str, queue: str = "default") -> dict[bytes, bytes]:
    """The recorded state of a run."""
    key = app.queue(queue).keys.run(message_id)
    with app.client.factory.redis(key) as redis:
        fields: Any = redis.hgetall(key)
    return dict(fields)


def test_a_sync_run_continues_after_its_steps(app: QWorker) -> None:
    """Each step is called once, whatever fails behind it, and its value is of the declared type."""
    calls = Calls(failures=2)

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun, name: str) -> list[int]:
        first = run.step(calls.charge, name)
        again = run.step(calls.charge, "again")
        calls.fail()
        assert isinstance(first, Payment)
        return [first.cents, again.cents]

    handle = order.start("a")
    ran(app)
    assert handle.result(0) == [1, 2]
    assert calls.made == ["a", "again"]


def test_an_async_run_continues_after_its_steps(app: QWorker) -> None:
    """Its steps are async or plain functions, and lambdas with their own name."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    async def order(run: Run, name: str) -> list[int]:
        first = await run.step(calls.pay, name)
        second = await run.step(calls.charge, "b")
        third = await run.step("third", lambda: calls.charge("c"))
        calls.fail()
        return [first.cents, second.cents, third["cents"]]  # type: ignore[index]  # unannotated: JSON

    handle = order.start("a")
    ran(app)
    assert handle.result(0) == [1, 2, 3]
    assert calls.made == ["a", "b", "c"]


def test_a_step_returns_what_is_recorded(app: QWorker) -> None:
    """At the first call as at a later one: a value without an annotation is plain JSON both times."""
    seen: list[object] = []
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun) -> None:
        seen.append(run.step("pair", lambda: (1, 2)))
        calls.fail()

    order.send()
    ran(app)
    assert seen == [[1, 2], [1, 2]]


def test_a_builtin_class_can_be_a_step(app: QWorker) -> None:
    """It has no signature, so its value is plain JSON."""

    @app.workflow
    def order(run: SyncRun) -> int:
        return run.step("parse", int, "5")

    handle = order.start()
    drain(app)
    assert handle.result(0) == 5


def test_an_error_of_a_step_is_not_recorded(app: QWorker) -> None:
    """It fails the activation, and the next one calls the function again."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun) -> None:
        run.step(calls.charge, "a")
        run.step(calls.fail)

    handle = order.start()
    ran(app)
    assert handle.result(0) is None
    assert calls.made == ["a"]


def test_steps_are_found_by_name(app: QWorker) -> None:
    """Code that has changed between two activations finds the steps that it still has, in another order too."""
    calls = Calls(failures=1)
    order: list[str] = ["a", "b"]

    @app.workflow(retry=Retry.fixed("1s"))
    def steps(run: SyncRun) -> list[int]:
        values = [run.step(name, calls.charge, name).cents for name in order]
        order[:] = ["new", "b", "a"]
        calls.fail()
        return values

    handle = steps.start()
    ran(app)
    assert handle.result(0) == [3, 2, 1]
    assert calls.made == ["a", "b", "new"]


def test_progress_resets_failures(app: QWorker) -> None:
    """A run that records a step each time may fail more often than max receives; one that does not is dead."""
    calls = Calls(failures=4)
    rounds: list[int] = []

    @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
    def going(run: SyncRun) -> int:
        rounds.append(len(rounds))
        for number in rounds:
            run.step("round", lambda number=number: number)
        context = current()
        assert context is not None
        calls.fail()
        return len(rounds)

    @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
    def stuck(run: SyncRun) -> None:
        run.step("once", lambda: 1)
        raise FailingError

    handle, dead = going.start(), stuck.start()
    ran(app)
    assert handle.result(0) == 5
    with pytest.raises(TaskFailedError):
        dead.result(0)


def test_a_dead_run_is_redriven_from_its_last_step(app: QWorker) -> None:
    """Its steps are kept as long as the dead letter, and a day after the end."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> int:
        payment = run.step(calls.charge, "a")
        calls.fail()
        return payment.cents

    handle = order.start()
    ran(app)
    with pytest.raises(TaskFailedError):
        handle.result(0)
    assert b"charge" in stored(app, handle.id)
    queue = app.queue("default")
    assert queue.redrive(*[str(letter.entry) for letter in queue.dead()])
    ran(app)
    assert handle.result(0) == 1
    assert calls.made == ["a"]
    with app.client.factory.redis(queue.keys.meta) as redis:
        ttl_ms: Any = redis.pttl(queue.keys.run(handle.id))
        assert 0 < ttl_ms <= 24 * 3_600_000
        assert not redis.exists(queue.keys.runs)


@pytest.mark.parametrize("plain", [False, True])
def test_a_message_of_another_program_is_a_run_too(app: QWorker, plain: bool) -> None:
    """It asks for no result; its first step makes it a run, and its state expires after its end."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun, name: str) -> None:
        run.step(calls.charge, name)
        calls.fail()

    queue = app.queue("default")
    body = b'{"task": "order", "args": ["a"]}'
    if plain:
        with app.client.factory.redis(queue.keys.meta) as redis:
            redis.rpush(queue.keys.ready[0], body)
    else:
        queue.send(body)
    ran(app)
    assert calls.made == ["a"]
    with app.client.factory.redis(queue.keys.meta) as redis:
        names: Any = [*redis.scan_iter(match=queue.keys.run("*"))]
        [name] = names
        assert redis.pttl(name) > 0
        assert not redis.exists(queue.keys.runs)


def test_a_long_run_reads_its_steps_as_it_needs_them(app: QWorker) -> None:
    """Hundreds of steps of one name, of which a call reads some."""
    calls = Calls(failures=1)
    made: list[int] = []

    def one(number: int) -> int:
        made.append(number)
        return number

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun) -> int:
        total = sum(run.step(one, number) for number in range(200))
        calls.fail()
        return total

    handle = order.start()
    ran(app)
    assert handle.result(0) == sum(range(200))
    assert made == [*range(200)]


def test_a_zombie_records_nothing(app: QWorker) -> None:
    """The lease ran out during a step, and another worker has the run: the value of the late one is not recorded."""
    queue = app.queue("default")
    held: list[Message] = []

    @app.workflow(queue="default")
    def order(run: SyncRun) -> str:
        def slow() -> str:
            if held:
                return "second"
            context = current()
            assert context is not None
            with app.client.factory.redis(queue.keys.meta) as redis:
                [lease] = redis.zrange(queue.keys.unacked, 0, -1)  # type: ignore[misc]
                redis.zadd(queue.keys.unacked, {lease: 1})
            queue.reap()
            held.extend(queue.receive(1))
            return "first"

        return run.step(slow)

    handle = order.start()
    drained = drain(app, errors="collect", max_messages=1)
    assert [type(error).__name__ for error in drained.errors] == ["LeaseLostError"]
    assert stored(app, handle.id) == {}
    queue.release(*held)
    ran(app)
    assert handle.result(0) == "second"


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.slow
def test_steps_are_protected_as_messages_are(
    store_url: str, namespace: str, encrypted: bool
) -> None:
    """Signed, or encrypted too; a value that was put in place of another is refused."""
    keys = {"encryption": {"k": b"e" * 32}} if encrypted else {}
    app = QWorker(namespace, url=store_url, keys=Keyring(signing={"k": b"s" * 32}, **keys))
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
    def order(run: SyncRun) -> int:
        cents = run.step("one", calls.charge, "secret").cents
        cents += run.step("two", calls.charge, "secret").cents
        calls.fail()
        return cents

    handle = order.start()
    ran(app)
    assert handle.result(0) == 3
    fields = stored(app, handle.id)
    assert (b"secret" in fields[b"one"]) is not encrypted
    calls.failures = 1
    other = order.start()
    drain(app, errors="collect", max_messages=1)
    queue = app.queue("default")
    with app.client.factory.redis(queue.keys.meta) as redis:
        redis.hset(queue.keys.run(other.id), "two", stored(app, other.id)[b"one"])
    drained = drain(app, errors="collect")
    assert isinstance(drained.errors[-1], BadSignatureError)
    app.close()


def test_a_removed_queue_leaves_no_steps(app: QWorker) -> None:
    """Those of runs that have not ended go with it."""

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> None:
        run.step("one", lambda: 1)
        raise FailingError

    handle = order.start()
    ran(app)
    assert stored(app, handle.id)
    app.queue("default").remove()
    assert stored(app, handle.id) == {}


def test_a_removed_queue_with_a_key_of_another_type_leaves_no_steps(app: QWorker) -> None:
    """Its messages cannot be read, but its runs are in an index."""

    @app.workflow
    def order(run: SyncRun) -> None:
        run.step("one", lambda: 1)
        run.wait(str, name="note")

    handle = order.start()
    ran(app)
    assert stored(app, handle.id)
    queue = app.queue("default")
    with app.client.factory.redis(queue.keys.meta) as redis:
        redis.delete(queue.keys.delayed)
        redis.set(queue.keys.delayed, "not ours")
    queue.remove()
    assert stored(app, handle.id) == {}


def test_a_key_names_the_run_and_the_call(app: QWorker) -> None:
    """It is the same at each activation."""
    keys: list[str] = []
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def order(run: SyncRun) -> None:
        keys.append(run.key("charge"))
        calls.fail()

    message_id = order.send()
    ran(app)
    assert keys == [f"{app.namespace}/default/{message_id}/charge"] * 2


def test_a_workflow_can_be_called_with_a_run_of_the_tests_own(app: QWorker) -> None:
    """Directly, as a task can be."""

    class Straight:
        def step(self, function: Any, *args: Any) -> Any:
            return function(*args)

    @app.workflow
    def order(run: SyncRun, number: int) -> int:
        return run.step(abs, number)

    assert order(Straight(), -3) == 3


# -- sleeping and waiting -------------------------------------------------------------------------


@dataclass
class Approval:
    """A signal."""

    by: str


def test_a_run_sleeps_without_a_worker(app: QWorker) -> None:
    """Its function ends, and continues behind the sleep when the time is over; repeated sleeps are counted."""
    calls, others = Calls(), Calls()

    @app.workflow(max_receives=1)
    def order(run: SyncRun) -> int:
        run.step(calls.charge, "a")
        run.sleep("3d")
        run.step(calls.charge, "b")
        run.sleep("1h")
        return len(calls.made)

    @app.workflow(queue="later", max_receives=1)
    async def later(run: Run) -> int:
        await run.sleep("3d")
        return (await run.step(others.pay, "c")).cents

    handle, other = order.start(), later.start()
    drained = drain(app)
    assert handle.result(0) == 2
    assert other.result(0) == 1
    assert (calls.made, others.made) == (["a", "b"], ["c"])
    assert (drained.failed, drained.handled) == (0, 2)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_that_is_woken_early_sleeps_for_the_rest(app: QWorker, kind: str) -> None:
    """As by `qworker message enqueue`, however little is left; so does a wait that has a timeout."""
    if kind == "sync":

        @app.workflow(name="order")
        def order(run: SyncRun) -> str:
            run.sleep("1m")
            return run.wait(Approval, timeout="1m").by

    else:

        @app.workflow(name="order")
        async def aorder(run: Run) -> str:
            await run.sleep("1m")
            return (await run.wait(Approval, timeout="1m")).by

    handle = app.tasks["order"].start()
    queue = app.queue("default")
    for state in ("sleeping", "waiting"):
        drain(app, include_delayed=False)
        before = handle.status()
        assert before is not None
        assert (before.state, queue.enqueue(handle.id)) == (state, [handle.id])
        drain(app, include_delayed=False)
        after = handle.status()
        assert after is not None
        assert (after.state, after.due_ms) == (state, before.due_ms)
        if state == "sleeping":
            advance(app, "1m")
    handle.signal(Approval("ann"))
    drain(app, include_delayed=False)
    assert handle.result(0) == "ann"


def test_waits_in_a_task_group_park_their_run(app: QWorker) -> None:
    """The group that it raises is no failure; one with another error is."""

    @app.workflow(retry=Retry.none())
    async def order(run: Run, fails: bool) -> str:
        async def step() -> None:
            if fails:
                raise ValueError("no")

        async with asyncio.TaskGroup() as group:
            first = group.create_task(run.wait(Approval))
            second = group.create_task(run.wait(str, name="note"))
            group.create_task(step())
        return first.result().by + second.result()

    handle, failing = order.start(False), order.start(True)
    [error] = drain(app, errors="collect", include_delayed=False).errors
    assert isinstance(error, BaseExceptionGroup)
    assert failing.status().state == "dead"
    for value, name in ((Approval("ann"), None), ("!", "note")):
        assert handle.status().state == "waiting"
        handle.signal(value, name=name)
        drain(app, include_delayed=False)
    assert handle.result(0) == "ann!"


@pytest.mark.parametrize("grouped", [False, True])
def test_steps_beside_a_wait_or_a_failure_are_recorded(app: QWorker, grouped: bool) -> None:
    """They are not called again, though the function has ended before them."""
    calls: list[int] = []
    wrongs = ["no"]

    async def charge(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0.02)
        return number

    async def check() -> str:
        if wrongs:
            raise ValueError(wrongs.pop())
        return "checked"

    @app.workflow(retry=Retry.fixed("10ms"))
    async def order(run: Run) -> list[Any]:
        await asyncio.gather(run.step(charge, 1), run.step(check))
        made = [run.step(charge, 2), run.wait(Approval), run.step(charge, 3)]
        if not grouped:
            return await asyncio.gather(*made)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in made]
        return [task.result() for task in tasks]

    handle = order.start()
    drain(app, errors="collect")
    names = {step.name for step in handle.steps()}
    assert names >= {"charge", "check", "charge#2", "charge#3"}
    handle.signal(Approval("ann"))
    drain(app)
    assert handle.result(0) == [2, {"by": "ann"}, 3]
    assert sorted(calls) == [1, 2, 3]


def test_a_step_that_waits_for_what_comes_later_is_given_up(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, logs: list[dict[str, object]]
) -> None:
    """It does not keep its run from being parked: here until something that follows the wait. The log names it."""
    monkeypatch.setattr("qworker.app.runs.open_steps._END_S", 0.05)
    cancelled: list[str] = []

    @app.workflow
    async def order(run: Run) -> str:
        approved = asyncio.Event()

        async def notice() -> None:
            try:
                await approved.wait()
            except asyncio.CancelledError:
                cancelled.append("notice")
                raise

        async def approval() -> str:
            by = (await run.wait(Approval)).by
            approved.set()
            return by

        return (await asyncio.gather(run.step(notice), approval()))[1]

    handle = order.start()
    drain(app, include_delayed=False)
    assert handle.status().state == "waiting"
    assert cancelled == ["notice"]
    handle.signal(Approval("ann"))
    drain(app)
    assert handle.result(0) == "ann"
    given_up = [line for line in logs if line["event"] == "step_given_up"]
    assert [(line["run"], line["step"]) for line in given_up] == [(handle.id, "notice")]


def test_a_wait_within_a_step_parks_its_run(app: QWorker) -> None:
    """It does not wait for the step of which it is part."""

    @app.workflow
    async def order(run: Run) -> str:
        async def approved() -> str:
            return (await run.wait(Approval)).by

        return await run.step(approved)

    handle = order.start()
    drain(app, include_delayed=False)
    assert handle.status().state == "waiting"
    handle.signal(Approval("ann"))
    drain(app)
    assert handle.result(0) == "ann"


def test_a_wait_for_what_is_no_type_is_refused(app: QWorker) -> None:
    """A text is none; a union and a literal are some without a name of their own, however they are written."""
    signals: dict[str, Any] = {
        "text": "Approval",
        "union": Approval | None,
        "optional": Optional[Approval],  # noqa: UP045
        "literal": Literal["yes", "no"],
    }

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun, signal: str, name: str | None) -> None:
        run.wait(signals[signal], name=name)

    waiting = [order.start(signal, "note") for signal in signals if signal != "text"]
    order.start("text", "note")
    for signal in signals:
        order.start(signal, None)
    errors = drain(app, errors="collect", include_delayed=False).errors
    assert [type(error) for error in errors] == [InvalidOptionError] * 5
    assert [run.status().state for run in waiting] == ["waiting"] * 3


def test_a_run_waits_for_a_signal(app: QWorker) -> None:
    """As a value of its type; given before the wait, it is there at once."""

    @app.workflow
    def order(run: SyncRun) -> str:
        return run.wait(Approval).by

    @app.workflow(queue="later")
    async def later(run: Run) -> str:
        first = await run.wait(Approval, timeout="7d")
        second = await run.wait(str, name="note")
        return first.by + second

    handle, other = order.start(), later.start()
    other.signal("!", name="note")
    drain(app, include_delayed=False)
    assert app.queue("default").inspect().delayed == 1
    handle.signal(Approval("ann"))
    other.signal(Approval("bob"))
    drain(app, include_delayed=False)
    assert (handle.result(0), other.result(0)) == ("ann", "bob!")


def test_a_wait_ends_with_its_timeout(app: QWorker) -> None:
    """From then on the signal is refused, so that the run takes the same way at each activation."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1h"))
    def order(run: SyncRun) -> str:
        try:
            return run.wait(Approval, timeout="1d").by
        except SignalTimeoutError as error:
            calls.fail()
            return str(error)

    handle = order.start()
    drain(app, errors="collect", max_messages=2)
    with pytest.raises(SignalGivenError):
        handle.signal(Approval("late"))
    ran(app)
    assert handle.result(0) == "the signal 'Approval' was not given in time"


def test_wrong_signals_are_refused(app: QWorker) -> None:
    """A second value, one for an unknown run or one that has ended, of a type that JSON cannot carry."""

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> str:
        return run.wait(Approval).by

    handle = order.start()
    with pytest.raises(InvalidBodyError, match="signal: is of type object"):
        handle.signal(object())
    with pytest.raises(
        InvalidBodyError,
        match=r"^signal: is not a valid Approval; Expected `str`, got `int` - at `\$.by`",
    ):
        handle.signal(Approval(7))  # type: ignore[arg-type]
    for name in ("a b", "Approval#2", "!x", "n" * 101):
        with pytest.raises(InvalidNameError, match=r"signal: .* is not a valid name"):
            handle.signal(Approval("ann"), name=name)
    handle.signal(Approval("ann"))
    handle.signal(Approval("ann"))
    with pytest.raises(SignalGivenError, match="already has the signal 'Approval'"):
        handle.signal(Approval("bob"))
    drain(app)
    with pytest.raises(RunEndedError, match="has ended"):
        handle.signal(Approval("ann"))
    with pytest.raises(RunUnknownError, match="is unknown"):
        order.handle("other").signal(Approval("ann"))
    wrong = order.start()
    wrong.signal(5, name="Approval")
    [error] = drain(app, errors="collect").errors
    assert isinstance(error, InvalidResultError)
    assert f"qworker workflow signal {wrong.id} Approval JSON --replace" in str(error)


def test_a_value_that_a_dead_run_could_not_use_is_replaced(app: QWorker) -> None:
    """If the caller says so; one that waits, or whose wait has timed out, keeps the first."""

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> str:
        try:
            return run.wait(Approval, timeout="1d").by
        except SignalTimeoutError:
            raise ValueError("too late") from None

    late, handle = order.start(), order.start()
    handle.signal(5, name="Approval")
    with pytest.raises(SignalGivenError, match="can be replaced"):
        handle.signal(Approval("ann"), replace=True)
    drain(app, errors="collect")
    assert [each.status().state for each in (late, handle)] == ["dead", "dead"]
    with pytest.raises(SignalGivenError):
        late.signal(Approval("ann"), replace=True)
    with pytest.raises(SignalGivenError):
        handle.signal(Approval("ann"))

    async def replace() -> None:
        await handle.asignal(Approval("ann"), replace=True)
        await app.aclose()

    asyncio.run(replace())
    app.queue("default").redrive(ids={handle.id})
    drain(app)
    assert handle.result(0) == "ann"


@pytest.mark.parametrize("parked", [False, True])
def test_a_signal_finds_a_run_that_moves_during_the_search(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, parked: bool
) -> None:
    """Its first activation ends between the looks for ready and for unacked messages, which both miss it then."""

    @app.workflow
    def order(run: SyncRun) -> str:
        return run.wait(Approval).by

    handle, queue = order.start(), app.queue("default")
    running, look = queue.receive(visibility="1h"), peek._find_unacked

    def end_first(ref: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
        if running:
            queue.release(running.pop())
            if parked:
                drain(app, include_delayed=False)
        return (yield from look(ref, message_id))

    monkeypatch.setattr(peek, "_find_unacked", end_first)
    handle.signal(Approval("ann"))
    drain(app)
    assert (handle.result(0), running) == ("ann", [])


def test_an_unknown_run_is_searched_for_once_in_a_busy_queue(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends, receives and acks hide no message from a search. What goes back does, so then it is repeated."""

    @app.workflow
    def order(run: SyncRun) -> None:
        """Stand for any run."""

    queue, look = app.queue("default"), peek._find_unacked
    searches = list[str]()

    def be_busy(ref: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
        searches.append(message_id)
        queue.send({"task": "order", "args": []})
        [message] = queue.receive()
        if message_id == "back" and len(searches) < 3:
            queue.release(message)
        else:
            queue.ack(message)
        return (yield from look(ref, message_id))

    monkeypatch.setattr(peek, "_find_unacked", be_busy)
    for run_id, times in (("gone", 1), ("back", 3)):
        searches.clear()
        with pytest.raises(RunUnknownError, match="is unknown"):
            order.handle(run_id).signal(Approval("ann"))
        assert searches == [run_id] * times


@pytest.mark.parametrize("by", ["handle", "async handle", "id"])
def test_a_signal_to_a_message_that_is_no_run_is_refused(app: QWorker, by: str) -> None:
    """Its state would be kept forever, as nothing ends it; `doctor` would call it a run whose message is gone."""

    @app.task(result="1h")
    def plain() -> int:
        return 1

    handle = plain.start()

    async def in_async_code() -> None:
        try:
            await handle.asignal(Approval("ann"))
        finally:
            await app.aclose()

    def signal() -> None:
        if by == "async handle":
            asyncio.run(in_async_code())
        elif by == "handle":
            handle.signal(Approval("ann"))
        else:
            app.queue("default").signal(handle.id, "Approval", {"by": "ann"})

    with pytest.raises(RunUnknownError):
        signal()
    drain(app)
    assert handle.result(0) == 1
    assert stored(app, handle.id) == {}
    assert app.queue("default").runs() == []


def test_a_function_that_catches_everything_is_parked_all_the_same(app: QWorker) -> None:
    """What it does then is not the end of the run, and no step is called."""
    calls = Calls()

    @app.workflow
    def order(run: SyncRun) -> str:
        try:
            run.sleep("1d")
        except BaseException:
            with suppress(BaseException):
                run.step(calls.charge, "caught")
            return "caught"
        return "slept"

    handle = order.start()
    drain(app)
    assert handle.result(0) == "slept"
    assert calls.made == []


# -- refused --------------------------------------------------------------------------------------


def test_wrong_workflows_are_refused(app: QWorker) -> None:
    """Without a run, with that of the other kind, and with options that runs cannot have."""

    def none() -> None: ...
    def plain(run: Run) -> None: ...
    async def later(run: SyncRun) -> None: ...
    def fine(run: SyncRun) -> None: ...
    def call(number: int) -> None: ...
    def quoted(run) -> None: ...

    quoted.__annotations__["run"] = ForwardRef("Run")
    for function, problem in (
        (quoted, "is declared as Run; write def quoted"),
        (none, "takes no run"),
        (plain, "is declared as Run; write def plain"),
        (later, "is declared as SyncRun; write async def later"),
        (call, "is declared as int; write def call"),
    ):
        with pytest.raises(InvalidOptionError, match=problem):
            app.workflow(function)
    for options in ({"batch": 5}, {"at_most_once": True}, {"result": None}):
        with pytest.raises(InvalidOptionError, match="for a workflow"):
            app.workflow(**options)(fine)  # type: ignore[call-overload]


def test_wrong_steps_are_refused(app: QWorker) -> None:
    """Without a function or a name, async in a sync run, and values that JSON cannot carry or that are too large."""
    wrong: list[tuple[type[Exception], str, Any]] = []

    async def later() -> None: ...

    @app.workflow(retry=Retry.none())
    def order(run: SyncRun) -> None:
        for error, match, args in (
            (InvalidOptionError, "has no function", ("name",)),
            (InvalidOptionError, "is not a function", ("name", 5)),
            (InvalidOptionError, "is not a function", (5,)),
            (InvalidNameError, "has no name", (lambda: 1,)),
            (InvalidNameError, "is not a valid name", ("a b", abs, 1)),
            (InvalidNameError, "is not a valid name", ("@bytes", abs, 1)),
            (InvalidNameError, "is not a valid name", ("n" * 101, abs, 1)),
            (InvalidOptionError, "is an async function", (later,)),
            (InvalidResultError, "JSON", ("set", lambda: object())),
            (InvalidResultError, "at most 1", ("large", lambda: "x" * 2**20)),
        ):
            with pytest.raises(error, match=match):
                run.step(*args)
            wrong.append((error, match, args))
        with pytest.raises(InvalidNameError, match="signal: '' is not a valid name"):
            run.wait(str, name="")

    handle = order.start()
    drain(app)
    assert handle.result(0) is None
    assert len(wrong) == 10
    assert stored(app, handle.id) == {}
