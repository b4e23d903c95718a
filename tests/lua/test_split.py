"""split.lua: give one received message its own lease and visibility deadline."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.extend import split
from qworker.engine.settle import Outcomes
from qworker.errors import LeaseUsedError, TooLateError
from tests.lua.drive import NOW, Drive, own


def splitted(
    drive: Drive, lease: str, index: int, new: str, visibility_ms: int = 5000, at: int = NOW
) -> Any:
    """Split a message off; its deadline ms."""
    return drive.run(split(drive.keys, lease, index, new, visibility_ms, now_ms=at))


def test_moves_a_message_to_its_own_lease(engine_drive: Drive) -> None:
    """The message keeps its index, and with it whom an expiry blames; the others keep their deadline."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L")
    before = drive.state("stats", "wake")
    assert splitted(drive, "L", 2, "N", at=NOW + 10) == NOW + 5010
    assert drive.state() == {
        **before,
        "lease:L": {"1": own("a"), "3": own("c")},
        "lease:N": {"2": own("b")},
        "unacked": {"L": NOW + 30_000, "N": NOW + 5010},
    }


def test_old_receipt_is_stale_and_the_new_one_counts(drive: Drive) -> None:
    """After a split only the new receipt settles the message."""
    drive.send("a", "b")
    drive.receive("L")
    splitted(drive, "L", 2, "N")
    assert drive.settle(Outcomes("L", acks=[2])).counted == (False,)
    assert drive.settle(Outcomes("N", acks=[2])).counted == (True,)
    assert drive.state("unacked") == {"unacked": {"L": NOW + 30_000}}


def test_last_message_takes_its_old_lease_along(drive: Drive) -> None:
    """A lease that a split has emptied is gone with its deadline."""
    drive.send("a")
    drive.receive("L")
    splitted(drive, "L", 0, "N", 1)
    assert drive.state("unacked", "lease:L", "lease:N") == {
        "unacked": {"N": NOW + 1},
        "lease:N": {"0": own("a")},
    }


def test_visibility_0_is_over_at_once(drive: Drive) -> None:
    """With no visibility left the message comes back at the next reap."""
    drive.send("a", "b")
    drive.receive("L")
    assert splitted(drive, "L", 1, "N", 0) == NOW
    drive.call("reap", drive.standard_keys("N"), NOW, 1000)
    assert drive.state("ready", "unacked") == {
        "ready": [own("a", receives=1, shared=1, first_ms=NOW - 30_000, back_ms=NOW)],
        "unacked": {"L": NOW + 30_000},
    }


def test_stale_receipt_splits_nothing(drive: Drive) -> None:
    """Where the lease or the message is gone the answer is 0 and nothing is made."""
    drive.send("a", "b")
    drive.receive("L")
    drive.settle(Outcomes("L", acks=[1]))
    before = drive.state()
    assert splitted(drive, "L", 1, "N") == 0
    assert splitted(drive, "gone", 1, "N") == 0
    assert drive.state() == before


def test_repeated_split_is_answered_again(drive: Drive) -> None:
    """A split whose reply was lost may be repeated: it finds its own work, and does not move the deadline."""
    drive.send("a", "b")
    drive.receive("L")
    splitted(drive, "L", 2, "N")
    before = drive.state()
    assert splitted(drive, "L", 2, "N", at=NOW + 99) == NOW + 5000
    assert drive.state() == before


def test_used_lease_id_is_refused(drive: Drive) -> None:
    """A lease that holds anything else is not added to."""
    drive.send("a", "b", "c")
    drive.receive("L", 2)
    drive.receive("N", 1)
    before = drive.state()
    with pytest.raises(LeaseUsedError, match="'N'"):
        splitted(drive, "L", 2, "N")
    with pytest.raises(LeaseUsedError, match="'L'"):
        splitted(drive, "L", 2, "L")
    assert drive.state() == before


def test_plain_message_keeps_the_id_of_its_delivery(drive: Drive) -> None:
    """A plain message is named by the lease that delivered it, also after it moved to another."""
    drive.redis.rpush(drive.keys.ready[0], '{"a": 1}', '{"a": 1}')
    drive.receive("L")
    splitted(drive, "L", 2, "N", at=NOW + 7)
    assert drive.state("lease:N", "lease:L") == {
        "lease:L": {"1": '{"a": 1}'},
        "lease:N": {"2": own("L.2", NOW + 7, body='{"a": 1}')},
    }


def test_own_visibility_is_the_messages_or_the_queues(engine_drive: Drive) -> None:
    """Without a time the message gets its own visibility, else the queue's, else the default."""
    drive = engine_drive
    drive.send("a", flags={"v": "7000"})
    drive.send("b", "c", "d")
    drive.send("e", flags={"v": "0"})
    drive.redis.rpush(drive.keys.ready[0], "{}")
    drive.receive("L")

    def own_of(index: int, new: str) -> Any:
        return drive.run(split(drive.keys, "L", index, new, None, now_ms=NOW))

    assert [own_of(1, "N1"), own_of(2, "N2")] == [NOW + 7000, NOW + 30_000]
    drive.redis.hset(drive.keys.meta, "visibility_ms", "9000")
    assert [own_of(3, "N3"), own_of(5, "N5"), own_of(6, "N6")] == [NOW + 9000] * 3
    drive.redis.hset(drive.keys.meta, "visibility_ms", "x")
    assert own_of(4, "N4") == NOW + 30_000


def test_half_of_the_life_of_a_message_is_its_bound(engine_drive: Drive) -> None:
    """Asked to mind it, a split past half of the time to live is refused; without one nothing is bound."""
    drive = engine_drive
    drive.send("a", "b", ttl_ms=1001)
    drive.send("c")
    drive.redis.rpush(drive.keys.ready[0], "{}")
    drive.receive("L")

    def half(index: int, new: str, at: int) -> Any:
        return drive.run(split(drive.keys, "L", index, new, 5000, half=True, now_ms=at))

    before = drive.state()
    with pytest.raises(TooLateError) as late:
        half(1, "N1", NOW + 501)
    assert (late.value.message_id, late.value.half_ms) == ("a", NOW + 500)
    assert drive.state() == before
    assert half(1, "N1", NOW + 500) == NOW + 5500
    assert half(3, "N3", NOW + 10**6) == half(4, "N4", NOW + 10**6) == NOW + 10**6 + 5000
    assert splitted(drive, "L", 2, "N2", at=NOW + 900) == NOW + 5900
    assert half(1, "N9", NOW + 501) == 0
