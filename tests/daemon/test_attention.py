"""Which queues a pass looks at: idle ones of many less often, and never less often than it is said."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from qworker.daemon.attention import IDLE_AFTER_S, LONGEST_PAUSE_S, Attention
from qworker.wire.keys import QueueKeys

TOGETHER = 10
#: With so many reapers a few queues are as many looks as lots of them with one.
CROWD = 1_000


@dataclass
class Clock:
    """A clock that stands until it is moved."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def queues_of(number: int) -> tuple[QueueKeys, ...]:
    return tuple(QueueKeys("t", f"q{each:06}") for each in range(number))


def looked_at(attention: Attention, queues: tuple[QueueKeys, ...], reapers: int = 1) -> set[str]:
    """Make a pass; the names of the queues that it looked at."""
    groups = attention.due(queues, TOGETHER, reapers)
    attention.looked(groups)
    return {keys.queue for group in groups for keys in group.queues}


@pytest.mark.parametrize(("number", "reapers"), [(300, 1), (2_000, 10)])
def test_few_queues_are_looked_at_in_each_pass(number: int, reapers: int) -> None:
    """As long as that is 20,000 looks a second of all reapers together, there are no pauses."""
    clock, queues = Clock(), queues_of(number)
    attention = Attention(1000, clock=clock)
    for _ in range(5):
        assert len(looked_at(attention, queues, reapers)) == number
        clock.now += 0.3


@pytest.mark.parametrize(("number", "reapers", "pause_s"), [(600, 100, 3), (2_000, CROWD, 5)])
def test_idle_queues_are_looked_at_within_a_pause_and_a_tick(
    number: int, reapers: int, pause_s: int
) -> None:
    """Each of them, whatever the jitter; and passes look at equal shares, but for the first."""
    clock, queues = Clock(), queues_of(number)
    attention = Attention(1000, clock=clock)
    last = dict.fromkeys(looked_at(attention, queues, reapers), clock.now)
    assert len(last) == number
    shares = []
    for _ in range(40):
        clock.now += 0.9
        found = looked_at(attention, queues, reapers)
        last.update(dict.fromkeys(found, clock.now))
        shares.append(len(found) / number)
        assert clock.now - min(last.values()) <= pause_s + 1
    assert sum(shares[-20:]) / 20 < 1.5 / pause_s
    assert max(shares) < 3 / pause_s


def test_queue_in_which_something_was_found_is_looked_at_in_each_pass() -> None:
    """For a minute from the last find on; then it is idle again."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock)
    looked_at(attention, queues, CROWD)
    attention.active("q000777")
    seen = []
    for _ in range(int(IDLE_AFTER_S) + 30):
        clock.now += 1
        seen.append("q000777" in looked_at(attention, queues, CROWD))
    assert all(seen[: int(IDLE_AFTER_S) - 1])
    assert not all(seen[int(IDLE_AFTER_S) + 5 :])


def test_new_queue_is_looked_at_in_the_pass_that_learns_of_it() -> None:
    """And what is known of the others stays known: neither is all looked at again, nor is an active one forgotten."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    looked_at(attention, queues, CROWD)
    attention.active("q001500")
    clock.now += 1
    more = (*queues[:405], QueueKeys("t", "q000404a"), *queues[405:])
    found = looked_at(attention, more, CROWD)
    assert {"q000404a", "q001500"} <= found
    assert len(found) <= 4 * TOGETHER


def test_pause_on_purpose_is_told_and_a_late_reaper_is_not() -> None:
    """A reaper that stood still has a gap of its own, and must not excuse it with the pause of idle queues."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock, jitter=lambda: 0.0)
    assert attention.looked(attention.due(queues, TOGETHER, CROWD)) == {}
    for _ in range(4):
        clock.now += 1
        assert attention.looked(attention.due(queues, TOGETHER, CROWD)) == {}
    clock.now += 1
    paused = attention.looked(attention.due(queues, TOGETHER, CROWD))
    assert len(paused) == len(queues)
    assert set(paused.values()) == {int(LONGEST_PAUSE_S * 1000)}
    clock.now += 30
    assert attention.looked(attention.due(queues, TOGETHER, CROWD)) == {}


def test_look_that_failed_is_made_again() -> None:
    """A pass that does not get as far as to look leaves the queues due."""
    clock, queues = Clock(), queues_of(2_000)
    attention = Attention(1000, clock=clock)
    attention.due(queues, TOGETHER, CROWD)
    assert len(looked_at(attention, queues, CROWD)) == len(queues)
