"""What the rows of a concurrency read from a history: too many at once, and slots that stay idle."""

from __future__ import annotations

from verification.faults.history import Event
from verification.faults.slots import figures

SECOND = 10**9
SENT = Event(0, 1, "sent", ("p0/slot", "1", "100"))


def ran(first: float, last: float, number: int, pid: int) -> list[Event]:
    """A handler that ran from one second to another."""
    key = f"p0/slot-{number}"
    return [
        Event(int(first * SECOND), pid, "started", (key, "1")),
        Event(int(last * SECOND), pid, "done", (key,)),
    ]


def busy(first: float, last: float, *pids: int) -> list[Event]:
    """Processes that run one handler after the other, of a second each, from number pid × 10 on."""
    events: list[Event] = []
    for pid in pids:
        for at in range(int(last - first)):
            events += ran(first + at, first + at + 1, pid * 10 + at, pid)
    return events


def test_three_at_a_time_leave_no_slot_idle() -> None:
    """One that begins as another ends is not beside it."""
    found = figures([SENT, *busy(0, 5, 1, 2, 3)])
    assert found == {
        "slots_used": 15,
        "at_once": 3,
        "at_once_after_loss": 0,
        "idle_longest_s": 0.0,
        "idle_share": 0.0,
    }


def test_a_fourth_is_seen() -> None:
    """Also where it is another process's."""
    assert figures([SENT, *busy(0, 5, 1, 2, 3), *ran(2.2, 2.4, 99, 4)])["at_once"] == 4


def test_a_slot_that_stays_idle_while_messages_wait_is_seen() -> None:
    """Whatever goes on beside it; at the end, when few are left, it does not count."""
    found = figures([SENT, *busy(0, 6, 1, 2), *busy(0, 2, 3), *busy(5, 6, 4)])
    assert (found["idle_longest_s"], found["idle_share"]) == (3.0, 50.0)
    few = Event(0, 1, "sent", ("p0/slot", "1", "18"))
    assert figures([few, *busy(0, 6, 1, 2), *busy(0, 2, 3)])["idle_longest_s"] == 0.0


def test_what_runs_after_the_loss_of_a_master_is_counted_apart() -> None:
    """Until its leases have run out, what it had delivered may run beside what the new one delivers."""
    events = [SENT, *busy(0, 5, 1, 2, 3), *ran(2.2, 2.4, 99, 4)]
    after = figures([*events, Event(2 * SECOND, 9, "master_lost", ())])
    assert (after["at_once"], after["at_once_after_loss"]) == (3, 4)
    before = figures([*events, Event(3 * SECOND, 9, "master_lost", ())])
    assert (before["at_once"], before["at_once_after_loss"]) == (4, 3)


def test_slots_are_idle_while_few_children_are_left_but_no_more_run() -> None:
    """A course that kills most of them says so."""
    few = Event(0, 9, "few", ())
    found = figures([SENT, few, *busy(0, 5, 1), *ran(2.0, 3.0, 97, 4), *ran(2.2, 2.4, 98, 5)])
    assert (found["at_once"], found["idle_longest_s"]) == (3, 0.0)
    assert figures([SENT, few, *busy(0, 5, 1, 2, 3), *ran(2.2, 2.4, 99, 4)])["at_once"] == 4
