"""What the rows of unique keys read from a history."""

from __future__ import annotations

from verification.faults.history import Event
from verification.faults.keys import figures

SECOND = 10**9


def event(at: float, word: str, *rest: object, pid: int = 1) -> Event:
    """A line of a history, at a second."""
    return Event(int(at * SECOND), pid, word, tuple(map(str, rest)))


def sent(at: float, key: str, word: str = "sent") -> list[Event]:
    """A send that took a hundredth of a second; its message has the key as its id."""
    producer, _, number = key.rpartition("-")
    ended = [number, number] if word == "sent" else [number]
    return [
        event(at, "named", key, key),
        event(at, "sending", producer, number, number),
        event(at + 0.01, word, producer, *ended),
    ]


def kept(at: float, key: str, holder: str) -> list[Event]:
    """A send that a holder kept out."""
    return [*sent(at, key, "refused"), event(at + 0.01, "kept", key, holder)]


def ran(first: float, last: float, key: str, pid: int) -> list[Event]:
    """A handler that ran from one second to another."""
    return [
        event(first, "started", key, 1, pid=pid),
        event(last, "done", key, pid=pid),
    ]


def test_two_handlers_of_a_key_beside_each_other_are_seen() -> None:
    """Of whichever producer; not those of another key, nor one that begins as another ends."""
    events = [
        *ran(0, 2, "p1/unique0-1", 1),
        *ran(2, 3, "p2/unique0-1", 2),
        *ran(1, 3, "p1/unique1-1", 3),
    ]
    assert figures(events)["beside"] == 1
    assert figures([*events, *ran(2.5, 2.6, "p1/unique0-2", 4)])["beside"] == 2


def test_slots_beside_each_other_are_seen() -> None:
    """Of one schedule; that of a killed process ended with its last note."""
    events = [
        event(0, "slot_began", "a", 3, pid=1),
        event(1, "heard", pid=1),
        event(2, "slot_began", "b", 3, pid=2),
        event(2, "slot_began", "c", 4, pid=3),
        event(3, "slot_ended", "b", 3, pid=2),
    ]
    found = figures(events)
    assert (found["slots_beside"], found["slots_began"]) == (1, 3)
    assert figures([*events, event(2.5, "heard", pid=1)])["slots_beside"] == 2


def test_a_key_that_outlives_its_holder_is_seen() -> None:
    """Counted from the last end of one held until then, from the first start of one held until that."""
    one = [
        *sent(0, "p1/unique0-1"),
        *ran(1, 2, "p1/unique0-1", 1),
        *kept(2.5, "p1/unique0-2", "p1/unique0-1"),
    ]
    assert figures(one)["held_after_s"] == 0.5
    assert figures([*one, *ran(2.2, 2.9, "p1/unique0-1", 2)])["held_after_s"] == 0.0
    begun = [
        *sent(0, "p1/begun0-1"),
        *ran(1, 2, "p1/begun0-1", 1),
        *kept(1.25, "p1/begun0-2", "p1/begun0-1"),
    ]
    assert figures(begun)["held_after_s"] == 0.25


def test_a_throttle_that_is_too_short_or_too_long_is_seen() -> None:
    """The time is a second; the moment of a send is within its call."""
    first = sent(0, "p1/timed0-1")
    assert figures([*first, *sent(1.0, "p2/timed0-1")])["throttled_twice"] == 0
    assert figures([*first, *sent(0.9, "p2/timed0-1")])["throttled_twice"] == 1
    assert figures([*first, *kept(1.51, "p2/timed0-1", "p1/timed0-1")])["kept_longer_s"] == 0.5


def test_a_debounce_that_loses_the_last_or_runs_what_was_replaced_is_seen() -> None:
    """The delay is 0.4 s, from each send on."""
    both = [*sent(0, "p1/typed0-1", "latest"), *sent(0.2, "p1/typed0-2", "latest")]
    late = ran(0.7, 0.8, "p1/typed0-2", 1)
    sound = figures([*both, *late])
    assert [sound[name] for name in ("replaced", "debounced_lost", "replaced_ran", "too_soon")] == [
        1,
        0,
        0,
        0,
    ]
    assert figures([*both, *ran(0.5, 0.6, "p1/typed0-1", 1)])["debounced_lost"] == 1
    assert figures([*both, *late, *ran(0.5, 0.6, "p1/typed0-1", 2)])["replaced_ran"] == 1
    assert figures([*both, *ran(0.5, 0.6, "p1/typed0-2", 1)])["too_soon"] == 1
    pressed = [*sent(0, "p1/pressed0-1", "latest"), *ran(3.01, 3.02, "p1/pressed0-2", 1)]
    assert figures(pressed)["postponed_s"] == 3.0


def test_keys_and_schedules_that_stay_locked_are_counted() -> None:
    """As their producer notes them."""
    assert figures([event(0, "locked", "unique0"), event(0, "silent", 3)])["locked"] == 2
