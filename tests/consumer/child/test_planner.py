"""From which queues one trip receives, and how many messages from each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.consumer.child.leases.board_slots import ChildLeases
from qworker.consumer.child.receive.chooser import QueueChooser
from qworker.consumer.child.receive.planner import ReceivePlanner
from qworker.consumer.child.receive.suspect_turns import SuspectTurns
from qworker.wire.keys import QueueKeys

FAST_S, SLOW_S = 1e-3, 1.0
Plan = Callable[..., list[int]]


def queue(
    mean_s: float, ready_left: int, executors: tuple[int, ...] = (), slots: int = 1
) -> QueueState:
    """A queue that is known to have messages, for handlers of all executors or of some that have these slots."""
    made = QueueState(QueueKeys("n", "q"), 0, visibility_s=30.0)
    made.learn(mean_s, 1)
    made.ready_left = ready_left
    made.executors, made.slots = executors, slots if executors else 0
    return made


@pytest.fixture
def plan() -> Iterator[Plan]:
    """Plan the receives of a child of some slots; returns how many messages each queue is asked for."""
    board = Board.create(4)

    def planned(
        queues: list[QueueState],
        *,
        slots: int,
        busy: int = 0,
        most: int | None = None,
        calls: tuple[int, ...] = (0,),
        peers: int = 1,
    ) -> list[int]:
        board.peers = peers
        chooser = QueueChooser(queues, weighted=False)
        planner = ReceivePlanner(
            chooser, SuspectTurns(first=False), ChildLeases(board), slots=slots
        )
        planner.calls = calls
        asked = {
            id(each.queue): each.count
            for each in planner.plan(queues, busy=busy, collected=0, most=most)
        }
        return [asked.get(id(each), 0) for each in queues]

    yield planned
    board.close()


def test_a_lower_queue_does_not_overtake_one_without_room(plan: Plan) -> None:
    """Its own messages are fast enough to wait in the child, but those of the higher one come first."""
    lower = queue(FAST_S, 1)
    assert plan([lower], slots=1, busy=1) == [1]
    assert plan([queue(SLOW_S, 1), lower], slots=1, busy=1) == [0, 0]


def test_other_executors_do_not_wait_for_one_without_room(plan: Plan) -> None:
    """The sync slot is taken; the loop of the async handlers has room, and so is asked for."""
    queues = [queue(SLOW_S, 1, (0,)), queue(SLOW_S, 1, (0,)), queue(SLOW_S, 1, (1,))]
    assert plan(queues, slots=2, busy=1, calls=(1, 0)) == [0, 0, 1]


@pytest.mark.parametrize("executors", [(), (0,)], ids=["of the child", "of an executor"])
def test_receives_of_one_trip_share_the_free_slots(plan: Plan, executors: tuple[int, ...]) -> None:
    """Slow messages wait in their queues, not in the child, however many queues have one."""
    queues = [queue(SLOW_S, 1, executors, slots=2) for _ in range(4)]
    assert plan(queues, slots=2) == [1, 1, 0, 0]


def test_receives_of_one_trip_share_what_may_still_be_taken(plan: Plan) -> None:
    """A child of `max_messages` takes no more, from however many queues."""
    assert plan([queue(FAST_S, 1) for _ in range(3)], slots=1, most=2) == [1, 1, 0]


def test_a_lower_queue_waits_while_the_higher_one_has_messages_left(plan: Plan) -> None:
    """Other children take their share of those; none takes from the lower queue meanwhile."""
    assert plan([queue(FAST_S, 8), queue(FAST_S, 1)], slots=1, peers=1) == [8, 1]
    assert plan([queue(FAST_S, 8), queue(FAST_S, 1)], slots=1, peers=4) == [2, 0]


@pytest.mark.parametrize(("most", "count"), [(None, 4), (2, 2)])
def test_the_receive_of_a_suspect_takes_no_more_than_others(most: int | None, count: int) -> None:
    """Another child may have taken the suspect: then it takes what is there beside it."""
    board, one = Board.create(4), queue(SLOW_S, 9)
    chooser = QueueChooser([one], weighted=False)
    chooser.note_suspects(one, 1)
    planner = ReceivePlanner(chooser, SuspectTurns(first=True), ChildLeases(board), slots=4)
    planned = planner.suspect(0.0, most)
    board.close()
    assert planned is not None
    assert (planned.queue, planned.count, planned.idle) == (one, count, True)
