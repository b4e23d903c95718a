"""Leases that no caller has seen: which are given back, how many at once, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from qworker import QWorker
from qworker.client.execute.aio import AsyncClient
from qworker.client.queue import AsyncQueue
from qworker.client.queue_ref import QueueRef
from qworker.client.receive.deliver import NewLeases, delivered
from qworker.client.unreturned import ALL, Unreturned
from qworker.engine.receive import Batch, settle_receive
from qworker.engine.settle import Outcomes
from qworker.errors import InDoubtError, QworkerError, ServerError, UnfinishedError
from qworker.store.connections import ConnectionFactory
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys
from tests.chaos import ChaosProxy
from tests.servers import Server, start
from tests.timing import Clock

KEYS, OTHER = QueueKeys("t", "orders"), QueueKeys("t", "others")


def leases_of(outcomes: Sequence[Outcomes]) -> list[str]:
    return [lease.lease_id for lease in outcomes]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unreturned(clock: Clock) -> Unreturned:
    return Unreturned(clock=clock)


def test_released_leases_are_forgotten_and_the_others_tried_again(
    unreturned: Unreturned, clock: Clock
) -> None:
    """A call under way may still create a lease: it is given back again for half a minute."""
    unreturned.note(KEYS, "a")
    unreturned.note(KEYS, "b")
    released = unreturned.outcomes(KEYS)
    assert leases_of(released) == ["a", "b"]
    unreturned.settled(KEYS, released, [1, 0])
    released = unreturned.outcomes(KEYS)
    assert leases_of(released) == ["b"]
    clock.now_s += 29
    unreturned.settled(KEYS, released, [0])
    assert unreturned
    clock.now_s += 2
    unreturned.settled(KEYS, released, [0])
    assert not unreturned
    assert unreturned.queues() == []


def test_a_lease_that_was_not_tried_is_kept(unreturned: Unreturned, clock: Clock) -> None:
    """However long ago it was noted: only a call that released it knows whether it exists."""
    unreturned.note(KEYS, "a")
    released = unreturned.outcomes(KEYS)
    unreturned.note(KEYS, "b")
    clock.now_s += 60
    unreturned.settled(KEYS, released, [0])
    assert leases_of(unreturned.outcomes(KEYS)) == ["b"]


def test_one_call_gives_back_32_leases_with_all_their_notes(
    unreturned: Unreturned,
) -> None:
    """Single messages of these leases come with them, whenever they were noted."""
    for number in range(40):
        unreturned.note(KEYS, f"l{number:02}", "1")
    unreturned.note(KEYS, "l00", "2")
    released = unreturned.outcomes(KEYS)
    assert leases_of(released) == [f"l{number:02}" for number in range(32)]
    first = Outcomes("l00")
    first.release("1")
    first.release("2")
    assert released[0] == first


def test_the_latest_thousand_of_a_queue_are_remembered(unreturned: Unreturned) -> None:
    """Leases of another queue do not count."""
    unreturned.note(OTHER, "x")
    for number in range(1_005):
        unreturned.note(KEYS, f"l{number:04}")
    assert leases_of(unreturned.outcomes(KEYS))[0] == "l0005"
    assert leases_of(unreturned.outcomes(OTHER)) == ["x"]


def test_a_lease_that_the_first_sending_of_a_receive_makes_later_is_given_back(
    namespace: str,
) -> None:
    """The repetition that was answered has not made it, and the caller does not know it."""
    with start("valkey") as server, ChaosProxy(server.url) as proxy:
        near, far = QWorker(namespace, url=server.url), QWorker(namespace, url=proxy.url)
        with near.client, far.client:
            queue = far.queue("q")
            assert queue.receive() == []
            near.queue("q").send({"n": 1})
            proxy.cut_request(every=1, of=b"EVALSHA", times=1)
            assert queue.receive() == []
            (late,) = far.client.unreturned.outcomes(queue.keys)
            near.client.execute(settle_receive(queue.keys, late.lease_id, 1))
            (message,) = queue.receive()
            assert (message.json(), message.receive_count) == ({"n": 1}, 1)
            assert not far.client.unreturned


@pytest.mark.slow
def test_many_cancelled_receives_give_back_each_lease_a_few_times(namespace: str) -> None:
    """Not every one of them all leases: the calls grow with the leases, not with their square."""

    async def work(server: Server, proxy: ChaosProxy) -> None:
        async with AsyncClient(ConnectionFactory(proxy.url)) as client:
            queues = [AsyncQueue(client, namespace, f"q{number}") for number in range(100)]
            await asyncio.gather(*(queue.receive() for queue in queues))
            proxy.delay_s = 0.2
            receiving = [asyncio.create_task(queue.receive()) for queue in queues]
            await asyncio.sleep(0.05)
            for task in receiving:
                task.cancel()
            await asyncio.wait(receiving)
            assert len(client.unreturned.queues()) == 100
            proxy.delay_s = 0
            server.redis().config_resetstat()
        calls = server.redis().info("commandstats")["cmdstat_evalsha"]["calls"]
        assert 100 <= calls <= 300

    with start("valkey") as server, ChaosProxy(server.url) as proxy:
        asyncio.run(work(server, proxy))


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("t", "orders", IdSource())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_call_that_ends_otherwise_leaves_its_leases(
    queue: QueueRef, error: type[BaseException]
) -> None:
    """Any error and an interrupt leave them, except those that were not created."""

    def call() -> None:
        with NewLeases() as leases:
            leases.enter(queue, "a")
            leases.enter(queue, "b")
            leases.absent("a")
            raise error

    with pytest.raises(error):
        call()
    assert leases_of(queue.unreturned.outcomes(queue.keys)) == ["b"]


def test_a_call_that_returns_leaves_nothing(queue: QueueRef) -> None:
    """Its caller has the messages."""
    with NewLeases() as leases:
        leases.enter(queue, "a")
    assert not queue.unreturned


@pytest.mark.parametrize(
    ("error", "left"),
    [(InDoubtError("x"), True), (UnfinishedError("x", 1), True), (ServerError("x"), False)],
)
def test_a_failed_call_leaves_a_lease_that_it_may_have_created(
    queue: QueueRef, error: QworkerError, left: bool
) -> None:
    """A refusal creates none; a call with a lost reply, or a script that stopped in its middle, may have."""
    with NewLeases() as leases:
        leases.enter(queue, "a")
        leases.failed(queue, "a", error)
    assert [
        (released.lease_id, released) for released in queue.unreturned.outcomes(queue.keys)
    ] == ([("a", _released("a"))] if left else [])


def _released(lease_id: str) -> Outcomes:
    outcomes = Outcomes(lease_id)
    outcomes.release(ALL)
    return outcomes


@pytest.mark.parametrize(
    ("error", "left"),
    [(InDoubtError("x"), True), (UnfinishedError("x", 1), True), (ServerError("x"), False)],
)
def test_a_split_that_may_have_been_made_gives_the_message_back_from_both_leases(
    queue: QueueRef, error: QworkerError, left: bool
) -> None:
    """Either may have it then. After a refused split it is in the old one, and it is delivered."""
    batch = Batch(
        "a", [b"q1 m 1000 0 0 0 0 v=5000\nx"], ["1"], 1000, 31_000, 0, -2, False, False, ()
    )
    plan = delivered(queue, batch, NewLeases())
    next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.throw(error)
    assert [message.receipt.lease_id for message in ended.value.value] == ([] if left else ["a"])
    leases = {released.lease_id: released for released in queue.unreturned.outcomes(queue.keys)}
    assert len(leases) == (2 if left else 0)
    if left:
        one = Outcomes("a")
        one.release("1")
        assert leases["a"] == one


OWN = b"q1 m 1000 0 0 0 0 v=5000\nx"


def batch_of(*items: bytes) -> Batch:
    indices = [str(number) for number in range(1, len(items) + 1)]
    return Batch("a", list(items), indices, 1000, 31_000, 0, -2, False, False, ())


@pytest.mark.parametrize("error", [InDoubtError("x"), ServerError("x")])
def test_a_foreign_item_that_cannot_be_buried_is_given_back_alone(
    queue: QueueRef, error: QworkerError, logs: list[dict[str, object]]
) -> None:
    """The messages beside it are delivered anyway."""
    batch = batch_of(b"q1 m 1000 0 0 0 0\nx", b"hello", b"q1 n 1000 0 0 0 0\ny")
    with NewLeases() as leases:
        plan = delivered(queue, batch, leases)
        settled = next(plan)
        assert "foreign" in settled.args
        with pytest.raises(StopIteration) as ended:
            plan.throw(error)
    assert [message.id for message in ended.value.value] == ["m", "n"]
    one = Outcomes("a")
    one.release("2")
    assert queue.unreturned.outcomes(queue.keys) == [one]
    (line,) = logs
    assert (line["event"], line["queue"]) == ("message_not_settled", "orders")


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (40_000, ["a", "new"]),  # the split was made
        (0, ["a"]),  # the old lease was gone
        (ServerError("x"), ["a"]),  # refused
        (None, ["a", "new"]),  # interrupted before its reply
    ],
    ids=["made", "gone", "refused", "interrupted"],
)
def test_an_interrupt_after_a_split_gives_back_the_leases_that_there_are(
    queue: QueueRef, reply: object, left: list[str]
) -> None:
    """A lease that was not created is not tried for half a minute."""

    def call() -> None:
        with NewLeases() as leases:
            leases.enter(queue, "a")
            plan = delivered(queue, batch_of(OWN), leases)
            next(plan)
            with suppress(StopIteration):
                if isinstance(reply, QworkerError):
                    plan.throw(reply)
                elif reply is not None:
                    plan.send(reply)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call()
    known = leases_of(queue.unreturned.outcomes(queue.keys))
    assert ["a" if lease_id == "a" else "new" for lease_id in known] == left


def test_a_refused_call_is_not_given_back_if_a_later_one_is_interrupted(queue: QueueRef) -> None:
    """Its lease was never created."""

    def call() -> None:
        with NewLeases() as leases:
            leases.enter(queue, "a")
            leases.failed(queue, "a", ServerError("x"))
            leases.enter(queue, "b")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call()
    assert leases_of(queue.unreturned.outcomes(queue.keys)) == ["b"]


def test_a_message_of_its_own_visibility_names_its_new_lease_its_shard_and_its_deadline(
    queue: QueueRef,
) -> None:
    """Its receipt settles in the shard that delivered it."""
    shard = queue.shard_of(2)
    plan = delivered(shard, batch_of(OWN), NewLeases())
    next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.send(40_000)
    (message,) = ended.value.value
    assert (message.receipt.index, message.receipt.shard, message.deadline_ms) == ("1", 2, 40_000)
    assert message.receipt.lease_id.endswith("-5000")
