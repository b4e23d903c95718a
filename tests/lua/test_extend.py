"""extend.lua: move the visibility deadlines of leases further away, never nearer."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.extend import extend
from qworker.engine.message import cancel
from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive

HOUR_MS = 3_600_000


def extended(drive: Drive, visibility_ms: int, *leases: str, at: int = NOW) -> Any:
    """Extend leases; lease id → deadline ms."""
    return drive.run(extend(drive.keys, leases, visibility_ms, now_ms=at)).deadlines


def test_raises_deadlines_and_says_which_leases_are_gone(engine_drive: Drive) -> None:
    """A held lease gets its new deadline, one that is gone a 0 and no new life."""
    drive = engine_drive
    drive.redis.zadd(drive.keys.unacked, {"L": NOW + 10, "M": NOW - 5})
    assert extended(drive, 1000, "L", "gone", "M", at=NOW + 1) == {
        "L": NOW + 1001,
        "gone": 0,
        "M": NOW + 1001,
    }
    assert drive.state() == {"unacked": {"L": NOW + 1001, "M": NOW + 1001}}


def test_never_brings_a_deadline_nearer(drive: Drive) -> None:
    """A shorter visibility leaves the deadline where it is, and says where that is."""
    drive.redis.zadd(drive.keys.unacked, {"L": NOW + 9000})
    assert extended(drive, 1000, "L") == {"L": NOW + 9000}
    assert drive.state() == {"unacked": {"L": NOW + 9000}}


@pytest.mark.bad_input("data found: deadline that is none")
@pytest.mark.parametrize("score", ["inf", 2**60, NOW + 12 * HOUR_MS + 1])
def test_no_deadline_is_further_than_12_hours(drive: Drive, score: Any) -> None:
    """A deadline that another server's clock or another program set is brought back into range."""
    drive.redis.zadd(drive.keys.unacked, {"L": score})
    assert extended(drive, 1000, "L") == {"L": NOW + 12 * HOUR_MS}
    assert drive.state() == {"unacked": {"L": NOW + 12 * HOUR_MS}}


@pytest.mark.bad_input("data found: deadline that is none")
def test_deadline_before_all_time_is_raised(drive: Drive) -> None:
    """The lowest score is a deadline like another."""
    drive.redis.zadd(drive.keys.unacked, {"L": "-inf"})
    assert extended(drive, 1000, "L") == {"L": NOW + 1000}


def test_thousand_leases_in_one_call(drive: Drive) -> None:
    """A full call answers for each lease."""
    leases = [f"L{number}" for number in range(1000)]
    drive.redis.zadd(drive.keys.unacked, dict.fromkeys(leases[::2], NOW))
    answer = extended(drive, 5, *leases)
    assert answer == {
        lease: NOW + 5 if number % 2 == 0 else 0 for number, lease in enumerate(leases)
    }


# -- cancelled messages ------------------------------------------------------------------------


def named(drive: Drive, *leases: str, at: int = NOW) -> list[tuple[str, str]]:
    """Extend leases; the cancelled messages that the reply names."""
    reply = drive.run(extend(drive.keys, leases, 1000, now_ms=at))
    assert {*reply.deadlines} == {*leases}
    return sorted(reply.cancelled)


def test_names_the_cancelled_messages_that_the_leases_hold(engine_drive: Drive) -> None:
    """By lease and index, of one alone, of one in company and of a plain one; no other lease's, and no one else's."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L", count=2)
    drive.receive("M", count=1)
    drive.redis.rpush(drive.keys.ready[0], "{}")
    drive.receive("P", count=1)
    assert named(drive, "L", "M", "P") == []
    for message_id in ("b", "c", "P.0", "gone"):
        drive.run(cancel(drive.keys, message_id, 5000, now_ms=NOW))
    assert named(drive, "L", "M", "P", "never") == [("L", "2"), ("M", "0"), ("P", "0")]
    assert named(drive, "L") == [("L", "2")]
    drive.settle(Outcomes("L", acks=[1]))
    assert named(drive, "L") == [("L", "2")], "a loose lease"


def test_looks_for_tombstones_in_a_part_of_many_messages_at_a_time(drive: Drive) -> None:
    """A call of leases with 3,000 messages names those of some, and another call those of others."""
    for number in range(3):
        ids = [f"{number}m{n}" for n in range(1000)]
        drive.send(*ids)
        drive.receive(f"L{number}", count=1000)
        drive.run(cancel(drive.keys, ids[7], 5000, now_ms=NOW))
    calls = [named(drive, "L0", "L1", "L2", at=NOW + turn) for turn in range(3)]
    assert sorted(calls) == [[(f"L{number}", "8")] for number in range(3)]


def test_lease_that_cannot_be_read_holds_nothing(drive: Drive) -> None:
    """A key of another type in the place of a lease costs the others nothing."""
    drive.redis.set(drive.keys.lease("L"), "x")
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    drive.run(cancel(drive.keys, "a", 5000, now_ms=NOW))
    assert named(drive, "L") == []
