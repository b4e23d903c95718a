"""extend.lua: move the visibility deadlines of leases further away, never nearer."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.extend import extend
from tests.lua.drive import NOW, Drive

HOUR_MS = 3_600_000


def extended(drive: Drive, visibility_ms: int, *leases: str, at: int = NOW) -> Any:
    """Extend leases; lease id → deadline ms."""
    return drive.run(extend(drive.keys, leases, visibility_ms, now_ms=at))


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
