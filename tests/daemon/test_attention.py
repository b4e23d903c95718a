"""Which queues a pass checks: idle ones of many less often, within a longest pause."""

from __future__ import annotations

import pytest

from qworker.daemon.attention import IDLE_AFTER_S, LONGEST_PAUSE_S, Attention
from qworker.wire.keys import QueueKeys
from tests.tables import each
from tests.timing import Clock

TOGETHER = 10
#: With this many reapers a few queues are as many checks as lots of them with one.
CROWD = 1_000


def queues_of(number: int) -> tuple[QueueKeys, ...]:
    return tuple(QueueKeys("t", f"q{index:06}") for index in range(number))


def checked(attention: Attention, queues: tuple[QueueKeys, ...], reapers: int = 1) -> set[str]:
    """Make a pass; the names of the queues that it checked."""
    groups = attention.due(queues, TOGETHER, reapers)
    attention.checked(groups)
    return {keys.queue for group in groups for keys in group.queues}


@pytest.mark.parametrize(("number", "reapers"), [(300, 1), (2_000, 10)])
def test_few_queues_are_checked_in_each_pass(number: int, reapers: int) -> None:
    """Up to 20,000 checks a second of all reapers together there are no pauses."""
    clock, queues = Clock(), queues_of(number)
    attention = Attention(1000, clock=clock)
    for _ in range(5):
        assert len(checked(attention, queues, reapers)) == number
        clock.now_s += 0.3


@pytest.mark.parametrize(("number", "reapers", "pause_s"), [(600, 100, 3), (2_000, CROWD, 5)])
def test_idle_queues_are_checked_within_a_pause_and_a_tick(
    number: int, reapers: int, pause_s: int
) -> None:
    """Each of them, whatever the jitter; and passes check equal shares, but for the first."""
    clock, queues = Clock(), queues_of(number)
    attention = Attention(1000, clock=clock)
    last = dict.fromkeys(checked(attention, queues, reapers), clock.now_s)
    assert len(last) == number
    shares = []
    for _ in range(40):
        clock.now_s += 0.9
        names = checked(attention, queues, reapers)
        last.update(dict.fromkeys(names, clock.now_s))
        shares.append(len(names) / number)
        assert clock.now_s - min(last.values()) <= pause_s + 1
    assert sum(shares[-20:]) / 20 < 1.5 / pause_s
    assert max(shares) < 3 / pause_s


def test_active_queue_is_checked_in_each_pass() -> None:
    """For a minute after it last held something; then it is idle again."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock)
    checked(attention, queues, CROWD)
    attention.active("q000777")
    seen = []
    for _ in range(int(IDLE_AFTER_S) + 30):
        clock.now_s += 1
        seen.append("q000777" in checked(attention, queues, CROWD))
    assert all(seen[: int(IDLE_AFTER_S) - 1])
    assert not all(seen[int(IDLE_AFTER_S) + 5 :])


def test_new_queue_is_checked_in_the_pass_that_learns_of_it() -> None:
    """The others keep what is known of them: idle ones are not checked again, and an active one stays active."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    checked(attention, queues, CROWD)
    attention.active("q001500")
    clock.now_s += 1
    more = (*queues[:405], QueueKeys("t", "q000404a"), *queues[405:])
    names = checked(attention, more, CROWD)
    assert {"q000404a", "q001500"} <= names
    assert len(names) <= 4 * TOGETHER


def test_pause_on_purpose_is_reported_and_a_late_reaper_is_not() -> None:
    """A reaper that was frozen has its own gap, and must not excuse it with the pause of idle queues."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    assert attention.checked(attention.due(queues, TOGETHER, CROWD)) == {}
    for _ in range(4):
        clock.now_s += 1
        assert attention.checked(attention.due(queues, TOGETHER, CROWD)) == {}
    clock.now_s += 1
    paused = attention.checked(attention.due(queues, TOGETHER, CROWD))
    assert len(paused) == len(queues)
    assert set(paused.values()) == {int(LONGEST_PAUSE_S * 1000)}
    clock.now_s += 30
    assert attention.checked(attention.due(queues, TOGETHER, CROWD)) == {}


def test_check_that_failed_is_made_again() -> None:
    """A pass that ends before its checks leaves the queues due."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock)
    attention.due(queues, TOGETHER, CROWD)
    assert len(checked(attention, queues, CROWD)) == len(queues)


@pytest.mark.parametrize(
    ("jitter", "first_s", "later_s"), [(0.0, 5.0, 5.0), (0.5, 2.5, 4.5), (1.0, 0.0, 4.0)]
)
def test_pauses_are_spread_the_first_over_its_whole_length(
    jitter: float, first_s: float, later_s: float
) -> None:
    """A reaper that starts has checked all queues at once; from then on their checks fall into different passes."""
    clock, queues = Clock(), queues_of(TOGETHER)
    attention = Attention(100, clock=clock, jitter=lambda: jitter)
    reapers = CROWD * 200
    attention.checked(attention.due(queues, TOGETHER, reapers))
    for pause_s in (first_s, later_s, later_s):
        begun = clock.now_s
        while not checked(attention, queues, reapers):
            clock.now_s = round(clock.now_s + 0.1, 1)
        assert clock.now_s - begun == pytest.approx(pause_s)


def test_queue_is_idle_a_minute_after_it_held_something() -> None:
    """Not before, for it may be one that is used every half minute."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    checked(attention, queues, CROWD)
    attention.active("q000777")
    begun = clock.now_s
    for after_s, is_checked in ((59.5, True), (60.5, False)):
        # All others have had their check just before.
        clock.now_s = begun + after_s - 1
        checked(attention, queues, CROWD)
        clock.now_s = begun + after_s
        assert ("q000777" in checked(attention, queues, CROWD)) == is_checked


def test_groups_count_their_checks_from_different_numbers() -> None:
    """The reaper does some work at every so many checks of a group: not for all groups in one pass."""
    clock, queues = Clock(), queues_of(3 * TOGETHER)
    attention = Attention(1000, clock=clock)
    for _ in range(2):
        checked(attention, queues)
    assert [group.checks for group in attention.groups] == [2, 3, 4]
    more = (*queues, QueueKeys("t", "r"))
    attention.due(more, TOGETHER, 1)
    assert [group.checks for group in attention.groups] == [3, 4, 5, 4]


@each(
    "tick_ms, gap_s, is_late",
    [(1000, 2.9, False), (1000, 3.1, True), (100, 1.9, False), (100, 2.1, True)],
)
@pytest.mark.slow
def test_reaper_is_late_after_three_ticks_and_two_seconds(
    tick_ms: int, gap_s: float, is_late: bool
) -> None:
    """Until then what it has left alone is a pause, which is no longer than it may be."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(tick_ms, clock=clock, jitter=lambda: 0.0)
    attention.checked(attention.due(queues, TOGETHER, CROWD))
    clock.now_s += 3.2
    attention.checked([])
    clock.now_s += gap_s
    paused = attention.checked(attention.groups)
    assert (paused == {}) == is_late
    assert set(paused.values()) <= {min(int(1000 * (3.2 + gap_s) + 0.5), 5000 + tick_ms)}


def test_pause_that_is_reported_is_never_longer_than_the_longest() -> None:
    """A group that was passed over for other reasons is overdue, not paused."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    attention.checked(attention.due(queues, TOGETHER, CROWD))
    for _ in range(20):
        clock.now_s += 1
        attention.checked([])
    paused = attention.checked(attention.groups)
    assert set(paused.values()) == {6000}


def test_nothing_is_paused_that_is_checked_at_each_tick_or_was_never_checked() -> None:
    """Neither a queue that is active, nor a new one, nor any where there are few."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    attention.checked(attention.due(queues, TOGETHER, CROWD))
    clock.now_s += 1
    more = (*queues, QueueKeys("t", "r"))
    groups = attention.due(more, TOGETHER, CROWD)
    assert [keys.queue for group in groups for keys in group.queues] == ["r"]
    assert attention.checked(groups) == {}
    attention.active("q000777")
    clock.now_s += 1
    assert set(attention.checked(attention.due(more, TOGETHER, CROWD)).values()) == {2000}
    clock.now_s += 1
    assert attention.checked(attention.due(more, TOGETHER, CROWD)) == {}
    for _ in range(3):
        clock.now_s += 1
        assert attention.checked(attention.due(queues[:20], TOGETHER, 1)) == {}
    clock.now_s += 1.5
    assert attention.checked(attention.due(queues[:20], TOGETHER, 1)) == {}


def test_queues_that_come_together_keep_the_earliest_check_of_them() -> None:
    """So that none waits for longer than the pause, and each is reported with all of its own."""
    clock, queues = Clock(), queues_of(2 * TOGETHER)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    reapers = CROWD * 200
    attention.checked(attention.due(queues, TOGETHER, reapers))
    clock.now_s += 2
    attention.checked(attention.groups[1:])
    # One is gone, so the first of the second group comes to the first, which was checked earlier.
    fewer = queues[1:]
    for _ in range(2):
        clock.now_s += 1
        assert checked(attention, fewer, reapers) == set()
    clock.now_s += 1
    groups = attention.due(fewer, TOGETHER, reapers)
    assert [group.queues for group in groups] == [fewer[:TOGETHER]]
    paused = attention.checked(groups)
    assert paused == dict.fromkeys((keys.queue for keys in fewer[:TOGETHER]), 5000)
