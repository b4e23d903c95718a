"""How many messages a child takes at a time."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.consumer.child.leases.batch_size import Pace, QueueState
from qworker.wire.keys import QueueKeys
from tests.tables import each


def pace(mean_s: float | None = None, **given: Any) -> QueueState:
    given.setdefault("visibility_s", 30.0)
    made = QueueState(QueueKeys("n", "q"), 0, **given)
    if mean_s is not None:
        made.learn(mean_s, 1)
    return made


@each(
    "mean_s, slots, batch",
    [
        (None, 1, 0),
        (10e-6, 1, 1000),
        (100e-6, 1, 500),
        (1e-3, 1, 50),
        (1e-3, 8, 400),
        (0.04, 1, 1),
        (0.06, 1, 0),
        (1.0, 100, 5),
        (10.0, 100, 0),
    ],
)
def test_a_batch_lasts_50_ms(mean_s: float | None, slots: int, batch: int) -> None:
    """A batch is what all slots handle in 50 ms, at most 1,000, and 0 where one message lasts longer."""
    assert pace(mean_s).batch(slots) == pytest.approx(batch, abs=1)


@pytest.mark.bad_input("number or time: prefetch times running time over the visibility")
def test_a_batch_never_lasts_over_a_quarter_of_the_visibility_timeout() -> None:
    """With a very short visibility timeout batches are shorter than 50 ms."""
    assert pace(1e-3, visibility_s=0.1).batch(1) == pytest.approx(25, abs=1)


def test_slower_is_believed_at_once_and_faster_by_and_by() -> None:
    """A batch that took much longer than thought counts in full; a faster one moves the mean by its share."""
    queue = pace(10e-6)
    queue.learn(1.0, 1)
    assert queue.pace.mean_s == 1.0
    queue.learn(10e-6, 1)
    assert queue.pace.mean_s == pytest.approx(0.7, abs=0.01)
    queue.learn(0.0, 0)
    assert queue.pace.mean_s == pytest.approx(0.7, abs=0.01)


@each(
    "mean_s, busy, slots, want",
    [
        (None, 0, 1, 1),  # unknown: one for each handler
        (None, 0, 100, 100),
        (None, 1, 1, 0),
        (1e-3, 0, 1, 50),
        (1e-3, 50, 1, 50),  # the next batch while this one runs
        (1e-3, 51, 1, 0),  # but not a third one
        (1.0, 0, 1, 1),  # slow: only for free handlers
        (1.0, 1, 1, 0),
        (1.0, 60, 100, 40),
    ],
)
def test_the_batch_depends_on_the_messages_held(
    mean_s: float | None, busy: int, slots: int, want: int
) -> None:
    """One batch may wait beside the running one; slow messages are asked for only when a handler is free."""
    assert pace(mean_s).want(busy, slots, 1) == pytest.approx(want, abs=1 if want > 1 else 0)


@each(
    "others_s, busy, slots, want",
    [
        (1e-3, 0, 1, 1),  # one, whatever the others' pace
        (1e-3, 1, 1, 1),  # and one beside theirs
        (1e-3, 50, 1, 1),
        (1e-3, 51, 1, 0),  # as long as they last 50 ms
        (0.02, 2, 1, 1),
        (0.02, 3, 1, 0),
        (0.04, 1, 1, 0),
        (1.0, 1, 1, 0),
        (1e-3, 100, 100, 1),
    ],
)
def test_a_queue_of_unknown_pace_is_judged_by_the_others(
    others_s: float, busy: int, slots: int, want: int
) -> None:
    """A child takes one message of it beside those of other queues, if the messages of all are fast."""
    common = Pace()
    known, unknown = pace(common=common), pace(common=common)
    known.learn(others_s, 1)
    assert unknown.batch(slots) == 0
    assert unknown.want(busy, slots, 1) == want


def test_a_queue_of_known_pace_is_not_judged_by_the_others() -> None:
    """Slow messages stay for other children although those of the other queues are fast, and the reverse."""
    common = Pace()
    slow, fast = pace(1.0, common=common), pace(1e-3, common=common)
    wants = []
    for common.mean_s in (1e-3, 1.0):
        wants.append((slow.want(1, 1, 1), fast.want(1, 1, 1)))
    assert wants == [(0, 50), (0, 50)]


def test_of_a_short_queue_each_child_takes_its_share() -> None:
    """With little left, a child leaves some to its peers; of an empty or unknown queue it may ask for all."""
    queue = pace(10e-6)
    queue.ready_left = 90
    assert queue.want(0, 1, 4) == 23
    queue.ready_left = 1
    assert queue.want(0, 1, 4) == 1
    queue.ready_left = 0
    assert queue.want(0, 1, 4) == 1000
    queue.ready_left = None
    assert queue.want(0, 1, 4) == 1000


def test_no_batch_is_over_the_limit() -> None:
    """`--batch` bounds everything."""
    assert pace(10e-6, max_batch=7).want(0, 1, 1) == 7
    assert pace(None, max_batch=7).want(0, 100, 1) == 7


@each(
    "mean_s, busy, collected, want",
    [
        (None, 0, 0, 500),
        (None, 0, 480, 20),
        (None, 0, 500, 1),
        (None, 1, 0, 0),
        (0.1, 0, 0, 500),  # slow or not, a call is filled up
        (0.1, 1, 0, 0),
        (10e-6, 1, 0, 500),  # the next call is collected while this one runs
        (10e-6, 1, 500, 0),
    ],
)
def test_calls_of_batch_handlers_are_filled_up(
    mean_s: float | None, busy: int, collected: int, want: int
) -> None:
    """A child asks for what its batch handler's next call lacks."""
    assert pace(mean_s, group=500).want(busy, 1, 4, collected) == want


@each(
    "mean_s, trip_s, slots, batch",
    [
        (0.02, None, 1, 2),  # no trip was measured yet
        (0.02, 0.0009, 1, 1),
        (0.02, 0.0011, 1, 2),  # far away: one waits in the child while one runs
        (0.012, 0.0001, 1, 4),
        (0.02, 0.0001, 2, 5),
        (0.06, 0.0001, 1, 0),
    ],
)
def test_few_messages_come_one_by_one_from_a_server_nearby(
    mean_s: float, trip_s: float | None, slots: int, batch: int
) -> None:
    """Each is acked along with the next receive, rather than a batch of two or three bit by bit."""
    queue = pace(mean_s)
    for seconds in (trip_s, 1.0):
        if trip_s is not None and seconds is not None:
            queue.note_trip(seconds)
    assert queue.batch(slots) == batch


def test_a_server_that_is_farther_away_from_now_on_is_noticed() -> None:
    """After a failover, say: few messages are taken at a time again; what waited for a message tells nothing."""
    queue = pace(0.02)
    queue.note_trip(0.0001)
    for _ in range(200):
        queue.note_trip(0.03, waited=True)
    assert queue.batch(1) == 1
    for _ in range(100):
        queue.note_trip(0.03)
    assert queue.batch(1) == 2
    queue.note_trip(0.0001, waited=True)
    assert queue.batch(1) == 1


@each(
    "mean_s, trip_s, slots, busy, want",
    [
        (10e-6, 0.0001, 1, 0, 501),  # 5 ms of quick ones, and one that runs
        (10e-6, 0.0001, 1, 377, 0),  # three quarters wait still
        (10e-6, 0.0001, 1, 370, 131),
        (10e-6, 0.006, 1, 0, 1000),  # far away: three trips
        (1e-3, 0.0001, 1, 0, 6),
        (0.02, 0.0001, 1, 0, 1),  # slow: only for a free handler
        (0.02, 0.0001, 1, 1, 0),
        (0.02, 0.0001, 8, 0, 12),  # half a handler's time
        (0.02, 0.0001, 8, 12, 0),
        (0.02, 0.0001, 8, 11, 1),
        (1.0, 0.0001, 8, 8, 0),
        (1.0, 0.0001, 8, 5, 3),
        (None, None, 8, 0, 8),
    ],
)
def test_of_groups_few_messages_wait_in_a_child(
    mean_s: float | None, trip_s: float | None, slots: int, busy: int, want: int
) -> None:
    """They stand before the turns of all groups: half of a handler's time, 5 ms or three trips, of 50 ms at most."""
    queue = pace(mean_s)
    queue.has_groups = True
    if trip_s is not None:
        queue.note_trip(trip_s)
    assert queue.want(busy, slots, 1) == pytest.approx(want, abs=1 if want > 12 else 0)
