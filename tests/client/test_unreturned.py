"""Leases that no caller has seen: which are given back, how many at once, and for how long they are looked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qworker.client.commands.receiving import Batch
from qworker.client.commands.settling import Outcomes
from qworker.client.delivering import Deliveries, delivered
from qworker.client.queue_ref import QueueRef
from qworker.client.unreturned import ALL, Unreturned
from qworker.errors import InDoubtError, QworkerError, ServerError, UnfinishedError
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys

KEYS, OTHER = QueueKeys("t", "orders"), QueueKeys("t", "others")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def leases_of(outcomes: Sequence[Outcomes]) -> list[str]:
    return [each.lease_id for each in outcomes]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unreturned(clock: Clock) -> Unreturned:
    return Unreturned(clock=clock)


def test_what_was_there_is_forgotten_and_the_rest_is_looked_for(
    unreturned: Unreturned, clock: Clock
) -> None:
    """A lease that is not there may still be made by a call under way: it is given back again for half a minute."""
    unreturned.note(KEYS, "a")
    unreturned.note(KEYS, "b")
    asked = unreturned.outcomes(KEYS)
    assert leases_of(asked) == ["a", "b"]
    unreturned.settled(KEYS, asked, [1, 0])
    asked = unreturned.outcomes(KEYS)
    assert leases_of(asked) == ["b"]
    clock.now += 29
    unreturned.settled(KEYS, asked, [0])
    assert unreturned
    clock.now += 2
    unreturned.settled(KEYS, asked, [0])
    assert not unreturned
    assert unreturned.queues() == []


def test_what_was_not_asked_for_is_not_given_up(unreturned: Unreturned, clock: Clock) -> None:
    """However long ago it was noted: who has not looked for a lease cannot say that it is not there."""
    unreturned.note(KEYS, "a")
    asked = unreturned.outcomes(KEYS)
    unreturned.note(KEYS, "b")
    clock.now += 60
    unreturned.settled(KEYS, asked, [0])
    assert leases_of(unreturned.outcomes(KEYS)) == ["b"]


def test_one_call_gives_back_32_leases_with_all_that_is_noted_of_them(
    unreturned: Unreturned,
) -> None:
    """Single messages of a lease that is among them come with it, wherever they were noted."""
    for number in range(40):
        unreturned.note(KEYS, f"l{number:02}", "1")
    unreturned.note(KEYS, "l00", "2")
    asked = unreturned.outcomes(KEYS)
    assert leases_of(asked) == [f"l{number:02}" for number in range(32)]
    first = Outcomes("l00")
    first.release("1")
    first.release("2")
    assert asked[0] == first


def test_the_latest_thousand_of_a_queue_are_remembered(unreturned: Unreturned) -> None:
    """Those of another queue are not among them."""
    unreturned.note(OTHER, "x")
    for number in range(1_005):
        unreturned.note(KEYS, f"l{number:04}")
    assert leases_of(unreturned.outcomes(KEYS))[0] == "l0005"
    assert leases_of(unreturned.outcomes(OTHER)) == ["x"]


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("t", "orders", IdSource())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_call_that_ends_otherwise_leaves_its_leases(
    queue: QueueRef, error: type[BaseException]
) -> None:
    """Whatever it is that ends it, an interrupt as well; not those that were not made."""

    def call() -> None:
        with Deliveries() as leases:
            leases.enter(queue, "a")
            leases.enter(queue, "b")
            leases.absent("a")
            raise error

    with pytest.raises(error):
        call()
    assert leases_of(queue.unreturned.outcomes(queue.keys)) == ["b"]


def test_a_call_that_returns_leaves_nothing(queue: QueueRef) -> None:
    """Its caller has the messages."""
    with Deliveries() as leases:
        leases.enter(queue, "a")
    assert not queue.unreturned


@pytest.mark.parametrize(
    ("error", "left"),
    [(InDoubtError("x"), True), (UnfinishedError("x", 1), True), (ServerError("x"), False)],
)
def test_a_failed_call_leaves_its_lease_where_it_may_be_there(
    queue: QueueRef, error: QworkerError, left: bool
) -> None:
    """A refusal made none; a lost reply and a script that stopped in its middle may have."""
    with Deliveries() as leases:
        leases.enter(queue, "a")
        leases.failed(queue, "a", error)
    assert [(each.lease_id, each) for each in queue.unreturned.outcomes(queue.keys)] == (
        [("a", _released("a"))] if left else []
    )


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
    """Nobody knows which of the two has it then. One that was refused leaves it where it was, and it is delivered."""
    batch = Batch(
        "a", [b"q1 m 1000 0 0 0 0 v=5000\nx"], ["1"], 1000, 31_000, 0, -2, False, False, ()
    )
    plan = delivered(queue, batch, Deliveries())
    next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.throw(error)
    assert [each.receipt.lease_id for each in ended.value.value] == ([] if left else ["a"])
    found = {each.lease_id: each for each in queue.unreturned.outcomes(queue.keys)}
    assert len(found) == (2 if left else 0)
    if left:
        one = Outcomes("a")
        one.release("1")
        assert found["a"] == one
