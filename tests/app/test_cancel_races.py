"""A cancel whose work goes on at any moment of it: what it answers is what becomes of the chain or group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from qworker import Cancellation, Failure, Handle, QWorker, TaskEndedError, chain, group
from qworker.client import cancel_chain
from qworker.client.cancel import cancel
from qworker.client.chain_search import ChainEnd, ShardContents, StepLocation
from qworker.client.inspect import peek
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.engine.raw import raw
from qworker.errors import ResultTimeoutError, ResultUnknownError
from qworker.testing import drain
from tests.relay import RTT_MS

#: No step of a plan has this number.
NEVER = -1


class Tasks:
    """Two tasks of two queues, and callbacks of a third."""

    def __init__(self, app: QWorker) -> None:
        self.app = app

        @app.task(queue="a", result="1h")
        def one(number: int) -> int:
            return number + 1

        @app.task(queue="b", result="1h")
        def two(number: int) -> int:
            return number + 2

        @app.task(queue="c", result="1h")
        def joined(values: list[int | Failure]) -> int:
            return len(values)

        @app.task(queue="c", result="1h")
        def fastest(value: int) -> int:
            return value

        self.one, self.two, self.joined, self.fastest = one, two, joined, fastest


Start = Callable[[Tasks], Handle[Any]]


def a_chain(tasks: Tasks) -> Handle[Any]:
    """Wait at the first step."""
    one, two = tasks.one, tasks.two
    return chain(one.call(0), two.then(), one.then(), two.then()).start()


def on_its_way(tasks: Tasks, *more: Any) -> Handle[Any]:
    """Wait in an outbox, for a queue that took nothing and takes messages now."""
    handle = chain(tasks.one.call(0), tasks.two.then(), *more).start()
    tasks.app.queue("b").pause("in")
    drain(tasks.app, queues=["a"])
    tasks.app.queue("b").resume()
    return handle


def a_step_on_its_way(tasks: Tasks) -> Handle[Any]:
    """Wait with a step in the outbox."""
    return on_its_way(tasks, tasks.one.then())


def an_end_on_its_way(tasks: Tasks) -> Handle[Any]:
    """Wait with the last step there."""
    return on_its_way(tasks)


def a_group(tasks: Tasks) -> Handle[Any]:
    """Wait for calls of two queues."""
    return group([tasks.one.call(0), tasks.two.call(0)]).then(tasks.joined).start()


def a_race(tasks: Tasks) -> Handle[Any]:
    """Wait for the first of two calls."""
    calls = [tasks.one.call(0), tasks.two.call(0)]
    return group(calls, policy="first").then(tasks.fastest).start()


def a_group_in_a_chain(tasks: Tasks) -> Handle[Any]:
    """Wait before the group."""
    parts = group([tasks.one.then(), tasks.two.then()]).then(tasks.joined)
    return chain(tasks.one.call(0), parts, tasks.two.then()).start()


def work_off(app: QWorker, handle: Handle[Any]) -> str:
    """Run and relay until it has ended; returns how."""
    for _ in range(8):
        for name in app.queues():
            queue = app.queue(name)
            queue.client.run(relay(app.namespace, queue.ref.keys))
        drain(app)
        try:
            handle.result(0)
        except TaskEndedError as error:
            return error.state
        except (ResultTimeoutError, ResultUnknownError):
            continue
        else:
            return "ok"
    return "waits"


def interrupted(plan: Plan[Any], at: int, happens: Callable[[], object]) -> Plan[tuple[Any, int]]:
    """Let something happen before the step `at` of a plan; returns its result and the number of its steps."""
    steps, reply = 0, None
    try:
        step = next(plan)
        while True:
            if steps == at:
                happens()
            steps += 1
            reply = yield step
            step = plan.send(reply)
    except StopIteration as end:
        return end.value, steps


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("start", "every"),
    [
        (a_chain, 4),
        (an_end_on_its_way, 4),
        (a_group_in_a_chain, 4),
        *(
            pytest.param(start, 1, marks=pytest.mark.nightly("test_the_answer_is_what_happens"))
            for start in (
                a_chain,
                a_step_on_its_way,
                an_end_on_its_way,
                a_group,
                a_race,
                a_group_in_a_chain,
            )
        ),
    ],
)
def test_the_answer_is_what_happens(
    store_url: str, namespace: str, start: Start, every: int
) -> None:
    """At each step of the cancel, or each fourth, once: all of the work is done just before it. Far away, at these."""
    answers: set[Cancellation] = set()
    with closing(QWorker(namespace, url=store_url)) as app:
        tasks = Tasks(app)

        def cancelled(at: int) -> int:
            handle = start(tasks)
            plan = cancel(app.queue(handle.queue).ref, handle.id)
            done = partial(work_off, app, handle)
            answer, steps = app.client.run(interrupted(plan, at, done))
            assert (answer, done()) in {
                (Cancellation.CANCELLED, "cancelled"),
                (Cancellation.ENDED, "ok"),
            }, f"step {at} of {steps}"
            answers.add(answer)
            return steps

        for at in range(0, cancelled(NEVER), 4 if RTT_MS else every):
            cancelled(at)
    assert answers == {Cancellation.CANCELLED, Cancellation.ENDED}


def test_a_cancel_finds_a_message_that_is_released_during_its_search(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back between the looks for ready and for unacked messages, which both miss it then."""
    with closing(QWorker(namespace, url=store_url)) as app:
        handle, queue = Tasks(app).one.start(1), app.queue("a")
        running, look = queue.receive(visibility="1h"), peek._find_unacked

        def release_first(ref: QueueRef, message_id: str) -> Plan[tuple[Stored | None, str]]:
            if running:
                queue.release(running.pop())
            return (yield from look(ref, message_id))

        monkeypatch.setattr(peek, "_find_unacked", release_first)
        assert handle.cancel() is Cancellation.CANCELLED
        assert (running, drain(app).handled) == ([], 0)


def test_a_cancel_finds_a_step_that_moves_to_a_queue_that_was_searched(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step ends after the search of the queue of the second one, and before that of its own."""
    searched, search = list[str](), cancel_chain.locate_step
    with closing(QWorker(namespace, url=store_url)) as app:
        tasks = Tasks(app)
        tasks.two.send(9)  # a queue that holds nothing is not searched
        handle = chain(tasks.one.call(0), tasks.two.then(), tasks.one.then()).start()

        def one_after_the_other(
            shard: QueueRef, held: ShardContents | None, end: ChainEnd
        ) -> Plan[StepLocation | None]:
            while shard.keys.name == "a" and "b" not in searched:
                yield raw("EXISTS", shard.keys.meta)
            found = yield from search(shard, held, end)
            if shard.keys.name == "b" and "b" not in searched:
                drain(app, queues=["a"])
            searched.append(shard.keys.name)
            return found

        monkeypatch.setattr(cancel_chain, "locate_step", one_after_the_other)
        assert handle.cancel() is Cancellation.CANCELLED
        assert drain(app).handled == 1
