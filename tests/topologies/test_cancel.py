"""Cancel of what is composed on a Cluster: chains, groups of calls and runs whose messages are on several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from qworker import Cancellation, QWorker, Run, SyncRun, TaskEndedError, chain, group
from qworker.client.cancel_calls import CancelledCalls
from qworker.testing import drain
from qworker.wire.keys import QueueKeys
from tests.app.test_cancel_chain import WAYS, Steps, work_off
from tests.consumer.test_cancel import ended_as
from tests.topologies.servers import Cluster
from tests.topologies.test_cluster import one_queue_per_master


@pytest.fixture
def app(nodes: Cluster, namespace: str) -> Iterator[QWorker]:
    """An app on the Cluster."""
    app = QWorker(namespace, url=nodes.url)
    yield app
    app.close()


@pytest.fixture
def queues(nodes: Cluster, namespace: str) -> tuple[str, ...]:
    """A queue on each master; the last one is divided into shards on all of them."""
    one, two, three = one_queue_per_master(nodes, namespace).values()
    app = QWorker(namespace, url=nodes.url)
    app.queue(three).divide(5, wait=0)
    shards = [QueueKeys(namespace, f"{three}/{number}") for number in range(1, 5)]
    assert len({nodes.master_of(shard.meta) for shard in shards}) > 1
    app.close()
    return one, two, three


class Calls:
    """Tasks of a group: calls in the divided queue, some of them first steps of chains, and a callback elsewhere."""

    def __init__(self, app: QWorker, queues: tuple[str, ...]) -> None:
        self.app, (self.ends, self.mid, self.work) = app, queues
        self.ran: list[int] = []
        self.square = app.task(self._square, queue=self.work, result="1h", name="square")
        self.same = app.task(self._same, queue=self.mid, result="1h", name="same")
        self.total = app.task(self._total, queue=self.ends, result="1h", name="total")

    def _square(self, number: int) -> int:
        self.ran.append(number)
        return number**2

    def _same(self, number: int) -> int:
        self.ran.append(number)
        return number

    def _total(self, values: list[Any]) -> int:
        return sum(values)

    def group(self) -> Any:
        """Twelve calls, so that every node has some, and chains that end on another one."""
        calls = [self.square.call(number) for number in range(8)]
        chains = [chain(self.square.call(number), self.same.then()) for number in range(8, 12)]
        return group([*calls, *chains]).then(self.total)


@pytest.mark.parametrize(
    ("way", "ran"),
    [
        pytest.param(
            way,
            ran,
            marks=()
            if ran == at
            else pytest.mark.nightly("test_a_chain_over_three_nodes_ends_where_it_waits"),
        )
        for at, way in enumerate(WAYS)
        for ran in range(3)
    ],
)
def test_a_chain_over_three_nodes_ends_where_it_waits(
    app: QWorker, queues: tuple[str, ...], way: str, ran: int
) -> None:
    """Whichever node has its step; nothing is left on any of them."""
    steps = Steps(app, *queues)
    handle = steps.start()
    if ran:
        drain(app, max_messages=ran)
    assert WAYS[way](app, handle) is Cancellation.CANCELLED
    work_off(app)
    ended_as(handle, "cancelled")
    assert steps.ran == list(range(ran))
    assert steps.left() == (0, [])


def test_a_step_that_runs_on_another_node_is_the_last(
    app: QWorker, queues: tuple[str, ...]
) -> None:
    """Its receiver acks it; the next step, which is sent to another node, is dropped there."""
    steps = Steps(app, *queues)
    handle = steps.start()
    drain(app, max_messages=1)
    message = steps.receive(1)
    assert handle.cancel() is Cancellation.CANCELLING
    app.queue(queues[1]).complete(message, 2)
    work_off(app)
    ended_as(handle, "cancelled")
    assert steps.ran == [0]
    assert steps.left()[0] == 0


def test_a_group_is_cancelled_on_all_nodes(app: QWorker, queues: tuple[str, ...]) -> None:
    """Calls that wait in any shard and chains under way; one that runs ends with its next heartbeat."""
    calls = Calls(app, queues)
    handle = calls.group().start()
    drain(app, queues=[calls.work], max_messages=2)
    [runs] = app.queue(calls.work).receive()
    done = app.queue(calls.ends).cancel_calls(handle.id)
    assert isinstance(done, CancelledCalls)
    # A chain whose first step has run has not ended by that.
    ended = sum(1 for number in calls.ran if number < 8)
    assert (done.cancelling, done.too_late) == (1, ended)
    assert done.cancelled == 12 - 1 - ended
    app.queue(calls.work).release(runs)
    work_off(app)
    assert len(calls.ran) == 2
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    for name in queues:
        state = app.queue(name).inspect()
        assert (state.stored, state.dead) == (0, 0), name
    assert app.queue(calls.ends).calls() == []


@pytest.mark.parametrize(
    ("kind", "with_calls"),
    [
        ("async", True),
        *(
            pytest.param(
                kind,
                with_calls,
                marks=pytest.mark.nightly("test_a_run_is_cancelled_with_its_calls_on_other_nodes"),
            )
            for kind, with_calls in (("sync", False), ("sync", True), ("async", False))
        ),
    ],
)
def test_a_run_is_cancelled_with_its_calls_on_other_nodes(
    app: QWorker, queues: tuple[str, ...], kind: str, with_calls: bool
) -> None:
    """If asked: without that they run on, and the run does not continue behind its gather."""
    calls, seen = Calls(app, queues), list[Any]()

    if kind == "sync":

        @app.workflow(name="publish", queue=calls.ends)
        def publish(run: SyncRun) -> None:
            seen.append(run.gather(calls.square.call(number) for number in range(8)))

    else:

        @app.workflow(name="publish", queue=calls.ends)
        async def apublish(run: Run) -> None:
            seen.append(await run.gather(calls.square.call(number) for number in range(8)))

    handle = app.find("publish").start()
    drain(app, queues=[calls.ends])

    async def cancel() -> Cancellation:
        answer = await handle.acancel(calls=with_calls)
        await app.aclose()
        return answer

    answer = asyncio.run(cancel()) if kind == "async" else handle.cancel(calls=with_calls)
    assert answer is Cancellation.CANCELLED
    work_off(app)
    assert sorted(calls.ran) == ([] if with_calls else list(range(8)))
    assert seen == []
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    assert app.queue(calls.ends).calls() == []
