"""Cancel of a chain by its handle: the step that waits or runs ends, and no later one runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from qworker import (
    Bury,
    Cancel,
    Cancellation,
    Failure,
    Handle,
    QueueAttributes,
    QWorker,
    TaskEndedError,
    TaskFailedError,
    chain,
    current,
    group,
)
from qworker.app.task import Task
from qworker.client.cancel import cancel as cancel_by_id
from qworker.client.message import Message
from qworker.client.plan import Plan
from qworker.client.relay import relay
from qworker.testing import drain
from qworker.wire.keyring import Keyring
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import DEADLINE_S, redis_of, running, until
from tests.consumer.test_cancel import ended_as, heartbeat, in_async_code

Cancels = Callable[[QWorker, Handle[Any]], Cancellation]

WAYS: dict[str, Cancels] = {
    "by its handle": lambda _, handle: handle.cancel(),
    "by its handle in async code": lambda app, handle: asyncio.run(in_async_code(app, handle)),
    "by queue and id": lambda app, handle: app.queue(handle.queue).cancel(handle.id),
}


@pytest.fixture(params=WAYS)
def cancel(request: pytest.FixtureRequest) -> Cancels:
    """Each way to cancel; the last one does not know the queues of the chain."""
    return WAYS[request.param]


#: Queues of a chain, and how many of its steps have run when it is cancelled.
BY_DAY = (("abcd", 0), ("abcd", 3), ("aaaa", 1), ("abba", 2))


class Steps:
    """Tasks in these queues, each of which adds one, and which of them ran."""

    def __init__(self, app: QWorker, *queues: str) -> None:
        self.app, self.queues, self.ran = app, queues, list[int]()
        self.tasks: list[Task[..., Any]] = [
            app.task(queue=queue, result="1h", name=f"step{number}")(self._step)
            for number, queue in enumerate(queues)
        ]

    def _step(self, number: int) -> int:
        self.ran.append(number)
        return number + 1

    def start(self) -> Handle[Any]:
        """Start the chain of all tasks with 0, so that each notes its own number."""
        first, *later = self.tasks
        return chain(first.call(0), *(task.then() for task in later)).start()

    def receive(self, step: int) -> Message:
        """Receive the message of a step, as a bare client does."""
        [message] = self.app.queue(self.queues[step]).receive(1)
        return message

    def run(self, step: int) -> None:
        """Run a step, as a bare client does."""
        message = self.receive(step)
        self.app.queue(self.queues[step]).complete(message, self._step(message.json()["args"][0]))

    def left(self) -> tuple[int, list[bytes]]:
        """How many messages are left, and the tombstones."""
        names = set(self.queues)
        states = [self.app.queue(name).inspect() for name in names]
        with redis_of(self.app) as redis:
            keys = [QueueKeys(self.app.namespace, name).cancelled for name in names]
            tombstones = [each for key in keys for each in redis.zrange(key, 0, -1)]
        stored = sum(state.ready + state.delayed + state.unacked + state.dead for state in states)
        return stored, tombstones


def work_off(app: QWorker) -> None:
    """Run what is ready, and relay what follows, as a reaper does, until nothing follows."""
    for _ in range(4):
        drain(app)
        queues = [app.queue(name) for name in app.queues()]
        if not any(queue.outboxes() for queue in queues):
            return
        for queue in queues:
            for shard in queue.client.run(queue.ref.every_shard()):
                queue.client.run(relay(app.namespace, shard.keys))


@pytest.mark.parametrize(
    ("queues", "steps"),
    [
        pytest.param(
            tuple(queues),
            steps,
            marks=()
            if (queues, steps) in BY_DAY
            else pytest.mark.nightly("test_a_chain_that_waits_ends_at_once"),
        )
        for queues in ("abcd", "aaaa", "abba")
        for steps in range(4)
    ],
)
@pytest.mark.slow
def test_a_chain_that_waits_ends_at_once(
    app: QWorker, cancel: Cancels, queues: tuple[str, ...], steps: int
) -> None:
    """At any of its steps: the answer is `cancelled`, the wait ends, and nothing is left, also no tombstone."""
    steps_ = Steps(app, *queues)
    handle = steps_.start()
    for step in range(steps):
        steps_.run(step)
    assert cancel(app, handle) is Cancellation.CANCELLED
    work_off(app)
    ended_as(handle, "cancelled")
    assert steps_.ran == list(range(steps))
    assert steps_.left() == (0, [])
    assert cancel(app, handle) is Cancellation.CANCELLED, "a repetition says the same"


@pytest.mark.parametrize("queues", [("a", "b"), ("a", "a")])
def test_the_end_of_a_chain_is_told_with_the_answer(
    app: QWorker, cancel: Cancels, queues: tuple[str, ...]
) -> None:
    """Also if no reaper runs: a wait has ended, and another cancel finds the chain cancelled, and not unknown."""
    handle = Steps(app, *queues).start()
    assert cancel(app, handle) is Cancellation.CANCELLED
    ended_as(handle, "cancelled")
    assert cancel(app, handle) is Cancellation.CANCELLED


@pytest.mark.parametrize("queues", [("a", "b", "c"), ("a", "a", "a")])
@pytest.mark.parametrize("step", range(2))
@pytest.mark.parametrize(
    "cancel",
    [
        pytest.param(
            "by its handle",
            marks=pytest.mark.nightly("test_a_step_that_runs_may_finish_and_nothing_follows"),
        ),
        "by its handle in async code",
        pytest.param(
            "by queue and id",
            marks=pytest.mark.nightly("test_a_step_that_runs_may_finish_and_nothing_follows"),
        ),
    ],
    indirect=True,
)
def test_a_step_that_runs_may_finish_and_nothing_follows(
    app: QWorker, cancel: Cancels, queues: tuple[str, ...], step: int
) -> None:
    """A receiver that does not see the cancel acks its step: the next one is dropped, and the wait ends."""
    steps = Steps(app, *queues)
    handle = steps.start()
    for before in range(step):
        steps.run(before)
    message = steps.receive(step)
    assert cancel(app, handle) is Cancellation.CANCELLING
    assert cancel(app, handle) is Cancellation.CANCELLING, "a repetition says the same"
    app.queue(queues[step]).complete(message, step + 1)
    work_off(app)
    ended_as(handle, "cancelled")
    assert steps.ran == list(range(step))
    assert steps.left()[0] == 0


def test_a_step_that_runs_is_asked_to_stop(app: QWorker, cancel: Cancels) -> None:
    """By a heartbeat, as any message: its handler sees it, and the chain ends there."""
    begun, late = threading.Event(), threading.Event()

    @app.task(queue="default", result="1h")
    def slow(number: int) -> int:
        begun.set()
        until(lambda: current().cancelled)
        raise Cancel

    @app.task(queue="other", result="1h")
    def last(number: int) -> int:
        late.set()
        return number

    handle = chain(slow.call(0), last.then()).start()
    with running(app) as child:
        assert begun.wait(DEADLINE_S)
        assert cancel(app, handle) is Cancellation.CANCELLING
        heartbeat(app, child)
        with pytest.raises(TaskEndedError) as caught:
            handle.result("1m")
    assert (caught.value.state, caught.value.step) == ("cancelled", "slow")
    assert not late.is_set()


def test_a_step_in_an_outbox_is_dropped_when_it_arrives(app: QWorker, cancel: Cancels) -> None:
    """Its queue takes no messages now: it will not run, and the wait ends once the queue takes it."""
    steps = Steps(app, "a", "b")
    handle = steps.start()
    app.queue("b").send("x")
    app.queue("b").configure(QueueAttributes(maxlen=1))
    steps.run(0)
    assert [box.entries for box in app.queue("a").outboxes()] == [1]
    assert cancel(app, handle) is Cancellation.CANCELLED
    app.queue("b").purge()
    app.queue("b").configure(QueueAttributes())
    work_off(app)
    ended_as(handle, "cancelled")
    assert steps.ran == [0]
    assert steps.left() == (0, [])


@pytest.mark.parametrize("last", ["group", "step"])
@pytest.mark.parametrize("where", ["before the group", "in the group"])
@pytest.mark.slow
@pytest.mark.parametrize(
    "cancel",
    [
        pytest.param(
            "by its handle", marks=pytest.mark.nightly("test_a_group_in_a_chain_is_cancelled")
        ),
        "by its handle in async code",
        pytest.param(
            "by queue and id", marks=pytest.mark.nightly("test_a_group_in_a_chain_is_cancelled")
        ),
    ],
    indirect=True,
)
def test_a_group_in_a_chain_is_cancelled(
    app: QWorker, cancel: Cancels, where: str, last: str
) -> None:
    """Before its calls are sent, and when they wait: none runs, nor its callback, nor what follows."""
    ran: list[str] = []

    @app.task(queue="a", result="1h")
    def split(number: int) -> int:
        return number

    @app.task(queue="b", result="1h")
    def part(number: int, more: int) -> int:
        ran.append("part")
        return number + more

    @app.task(queue="c", result="1h")
    def join(parts: list[int | Failure]) -> int:
        ran.append("join")
        return len(parts)

    @app.task(queue="d", result="1h")
    def report(number: int) -> int:
        ran.append("report")
        return number

    parts = group(part.then(more) for more in range(3)).then(join)
    chained = (
        chain(split.call(1), parts, report.then())
        if last == "step"
        else chain(split.call(1), parts)
    )
    handle = chained.start()
    [message] = app.queue("a").receive(1)
    if where == "in the group":
        app.queue("a").complete(message, 1)
        assert app.queue("b").inspect().ready == 3
        assert cancel(app, handle) is Cancellation.CANCELLED
    else:
        assert cancel(app, handle) is Cancellation.CANCELLING
        app.queue("a").complete(message, 1)
    work_off(app)
    ended_as(handle, "cancelled")
    assert ran == []


def test_too_late_says_so(app: QWorker, cancel: Cancels) -> None:
    """A chain that has ended, or whose step is dead, stays as it is."""
    steps = Steps(app, "a", "b")
    handle = steps.start()
    drain(app)
    assert cancel(app, handle) is Cancellation.ENDED
    assert handle.result(0) == 2

    @app.task(queue="a", result="1h")
    def die(number: int) -> int:
        raise Bury("no")

    dead = chain(die.call(1), steps.tasks[1].then()).start()
    drain(app)
    assert cancel(app, dead) is Cancellation.ENDED
    with pytest.raises(TaskFailedError):
        dead.result(0)
    assert steps.left() == (1, []), "a redrive continues the chain"


def test_another_chain_and_messages_with_such_ids_stay(app: QWorker, cancel: Cancels) -> None:
    """Only what names this end in its header is a step of it."""
    steps = Steps(app, "a", "b", "c")
    one, other = steps.start(), steps.start()
    stem = one.id.rpartition("-")[0]

    @app.workflow(queue="a")  # where it is found before the first step
    def run(run: Any) -> str:
        return "done"

    alike = run.options(id=f"{stem}-1").start()
    assert cancel(app, one) is Cancellation.CANCELLED
    drain(app)
    assert other.result(0) == 3
    assert alike.result(0) == "done"


def test_a_group_with_such_an_id_stays(app: QWorker, cancel: Cancels) -> None:
    """Only a group whose callback names this end is a step of the chain."""
    steps = Steps(app, "a", "b", "c")
    handle = steps.start()

    @app.task(queue="a", result="1h")
    def join(numbers: list[int | Failure]) -> int:
        return len(numbers)

    alike = group([steps.tasks[0].call(0)]).then(join).start(id=f"{handle.id[:-2]}-1")
    assert cancel(app, handle) is Cancellation.CANCELLED
    work_off(app)
    ended_as(handle, "cancelled")
    assert alike.result(0) == 1


def trips_of(plan: Plan[Any], app: QWorker) -> tuple[Any, int]:
    """Perform a plan; returns its result and how many trips it took."""
    trips = 0

    def counted() -> Plan[Any]:
        nonlocal trips
        step, reply = next(plan), None
        try:
            while True:
                trips += 1
                reply = yield step
                step = plan.send(reply)
        except StopIteration as end:
            return end.value

    return app.client.run(counted()), trips


@pytest.mark.slow
def test_the_search_through_all_queues_takes_as_many_trips_as_through_a_few(app: QWorker) -> None:
    """A chain in the last queue; one that is not there is not searched for twice while nothing moves."""
    steps, trips = Steps(app, "y", "z"), []
    for names in (3, 60):
        for number in range(names):
            app.queue(f"q{number:03}").send("x")
        handle = steps.start()
        queue = app.queue("z")
        answer, found = trips_of(cancel_by_id(queue.ref, handle.id), app)
        assert answer is Cancellation.CANCELLED
        ended = chain(steps.tasks[0].call(0), steps.tasks[1].then()).start()
        drain(app, queues=["y", "z"])
        with redis_of(app) as redis:
            redis.delete(queue.keys.result(ended.id))
        answer, lost = trips_of(cancel_by_id(queue.ref, ended.id), app)
        assert answer is Cancellation.UNKNOWN
        trips.append((found, lost))
    (found_few, lost_few), (found_many, lost_many) = trips
    assert found_many <= found_few + 3
    assert lost_many <= lost_few + 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "cancel",
    [
        *(
            pytest.param(
                way, marks=pytest.mark.nightly("test_a_step_in_a_shard_of_another_queue_is_found")
            )
            for way in WAYS
            if way != "by queue and id"
        ),
        "by queue and id",
    ],
    indirect=True,
)
def test_a_step_in_a_shard_of_another_queue_is_found(app: QWorker, cancel: Cancels) -> None:
    """The first message of a chain may be in any of them."""
    steps = Steps(app, "a", "b")
    app.queue("a").divide(4, wait=0)
    for _ in range(8):
        handle = steps.start()
        assert cancel(app, handle) is Cancellation.CANCELLED
        work_off(app)
        ended_as(handle, "cancelled")
    assert steps.ran == []
    assert steps.left() == (0, [])


@pytest.mark.parametrize("state", ["waits", "runs"])
def test_a_chain_is_cancelled_without_the_keys_of_its_messages(
    namespace: str, store_url: str, state: str
) -> None:
    """By an operator who cannot read which queue is next: whatever finishes, no later step runs."""
    keys = Keyring(signing={"s": b"s" * 32}, encryption={"e": b"e" * 32})
    with (
        closing(QWorker(namespace, url=store_url, keys=keys)) as app,
        closing(QWorker(namespace, url=store_url)) as bare,
    ):
        steps = Steps(app, "a", "b", "c")
        app.queue("b").create()
        handle = steps.start()
        received = [steps.receive(0)] if state == "runs" else []
        answer = bare.queue("c").cancel(handle.id)
        assert answer is Cancellation.CANCELLING if received else Cancellation.CANCELLED
        for message in received:
            app.queue("a").complete(message, 1)
        work_off(app)
        ended_as(handle, "cancelled")
        assert steps.ran == []
