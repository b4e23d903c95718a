"""When a child stands still for a suspect."""

from __future__ import annotations

import pytest

from qworker.consumer.child.leases.batch_size import QueueState
from qworker.consumer.child.receive.suspect_turns import SuspectTurns
from qworker.engine.receive import Suspects
from qworker.wire.keys import QueueKeys


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as the only element."""
    now = [1000.0]
    monkeypatch.setattr("qworker.consumer.child.receive.suspect_turns.monotonic", lambda: now[0])
    return now


def queue_with(suspects: int, receives: int) -> QueueState:
    queue = QueueState(QueueKeys("n", "q"), 0, visibility_s=30.0)
    queue.suspects, queue.receives = suspects, receives
    return queue


def test_it_stands_still_for_five_of_thirty_seconds_at_most(now: list[float]) -> None:
    """Handlers that run for minutes must not keep all others waiting."""
    turns, queue = SuspectTurns(first=True), queue_with(1, 3)
    still = []
    for second in range(35):
        now[0] = 1000.0 + second
        still.append(turns.stands_still(queue, idle=False))
    assert still == [True] * 5 + [False] * 25 + [True] * 5


@pytest.mark.parametrize(
    ("first", "suspects", "receives", "idle"),
    [(False, 1, 3, False), (True, 0, 3, False), (True, 1, 2, False), (True, 1, 3, True)],
    ids=["another child's", "no suspect", "not its turn", "it may take it now"],
)
def test_it_does_not_stand_still(first: bool, suspects: int, receives: int, idle: bool) -> None:
    """Only for a suspect whose turn it is, while handlers run beside which it may not."""
    queue = queue_with(suspects, receives)
    assert not SuspectTurns(first=first).stands_still(queue, idle=idle)


def test_every_fourth_receive_of_an_idle_child_takes_a_suspect_first() -> None:
    """The others take one only if nothing else is there; a child with running handlers none."""
    turns = SuspectTurns(first=True)
    kinds = [turns.of(queue_with(1, receives), idle=True) for receives in range(8)]
    assert kinds == 2 * [*[Suspects.IF_NOTHING_ELSE] * 3, Suspects.FIRST]
    assert turns.of(queue_with(1, 3), idle=False) is Suspects.NEVER
    assert SuspectTurns(first=False).of(queue_with(1, 3), idle=True) is Suspects.IF_NOTHING_ELSE
