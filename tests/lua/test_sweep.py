"""sweep.lua: look at many queues and say which have something to do."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.reap import QueueSweep, sweep
from qworker.wire.keys import QueueKeys
from tests.lua.drive import NOW, Drive, own

TICK_MS = 1000


def swept(drive: Drive, *queues: QueueKeys, at: int = NOW, leases: int = 10) -> list[QueueSweep]:
    """Sweep the queue and others; the looks."""
    if queues and drive.client.factory.clustered:
        pytest.skip("one call over several queues is for one server")
    now_ms, looks = drive.run(sweep([drive.keys, *queues], TICK_MS, leases=leases, now_ms=at))
    assert now_ms == at
    return list(looks)


def sweep_keys(*queues: QueueKeys) -> list[str]:
    """The keys that a sweep declares."""
    four = [(keys.delayed, keys.unacked, keys.ready[0], keys.stats) for keys in queues]
    return [queues[0].meta, *(key for each in four for key in each)]


def test_quiet_queue_has_nothing_to_do_and_is_not_written_to(engine_drive: Drive) -> None:
    """Without delayed, leased or expired messages there is nothing to tell, and no trace of the visit."""
    drive = engine_drive
    assert swept(drive) == [QueueSweep(drive.keys.queue)]
    drive.send("a")
    before = drive.state()
    assert swept(drive) == [QueueSweep(drive.keys.queue)]
    assert drive.state() == before


def test_reports_the_next_due_time_of_every_queue(engine_drive: Drive) -> None:
    """Each queue has its own answer: next due time, next deadline, overdue leases."""
    drive = engine_drive
    other = QueueKeys(drive.base.split(":")[0], "other")
    drive.send("a", delay_ms=70)
    drive.send("b", "c", "d")
    for number, lease in enumerate("LMN"):
        drive.receive(lease, 1, at=NOW + number)
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 30_000)
    looks = swept(drive, other, at=NOW + 30_001)
    assert looks == [
        QueueSweep(drive.keys.queue, NOW + 70, NOW + 30_000, overdue=("L", "M")),
        QueueSweep("other"),
    ]
    assert drive.stats("reaped_ms") == {"reaped_ms": NOW + 30_001}
    assert not drive.redis.exists(*sweep_keys(other))


def test_names_a_bounded_number_of_leases_latest_first(drive: Drive) -> None:
    """At most as many overdue leases as asked for are named, those first that are overdue longest."""
    drive.redis.zadd(drive.keys.unacked, {f"L{number}": NOW - number for number in range(20)})
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW)
    assert swept(drive, leases=3)[0].overdue == ("L19", "L18", "L17")
    assert len(swept(drive, leases=100)[0].overdue) == 20


def test_sees_an_expired_head(drive: Drive) -> None:
    """An expired message at the head of ready is reported, its limit included; a flag in a body is none."""
    drive.send("a", ttl_ms=10)
    assert swept(drive, at=NOW + 9) == [QueueSweep(drive.keys.queue)]
    assert swept(drive, at=NOW + 10) == [QueueSweep(drive.keys.queue, expired_at_head=True)]
    for item in ('{"a": " x=1 "}', "hello x=1", "q2 x x=1\n", own("b", body=" x=1 "), "q1 x=x"):
        drive.redis.lpush(drive.keys.ready[0], item)
        assert swept(drive, at=NOW + 10) == [QueueSweep(drive.keys.queue)], item


def test_grace_after_a_gap(drive: Drive) -> None:
    """After a gap only leases that were overdue at the last visit are named, until consumers could extend."""
    drive.redis.zadd(drive.keys.unacked, {"old": NOW, "young": NOW + 1})
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW)
    assert swept(drive, at=NOW + 3001)[0].overdue == ("old",)
    assert swept(drive, at=NOW + 6000)[0].overdue == ("old",)
    assert swept(drive, at=NOW + 9000)[0].overdue == ("old",)
    assert swept(drive, at=NOW + 9001)[0].overdue == ("old", "young")
    assert drive.stats() == {
        "reaped_ms": NOW + 9001,
        "gap_from_ms": NOW,
        "gap_until_ms": NOW + 9001,
        "gaps": 1,
    }


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("part", ["delayed", "unacked", "ready", "stats"])
def test_broken_queue_is_reported_and_the_others_are_swept(engine_drive: Drive, part: str) -> None:
    """A key of another type makes one queue broken, names it, and changes nothing of it."""
    drive = engine_drive
    other = QueueKeys(drive.base.split(":")[0], "other")
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    drive.redis.zadd(other.unacked, {"M": NOW})
    drive.redis.delete(drive.base + part)
    drive.redis.set(drive.base + part, "x")
    before = drive.state()
    looks = swept(drive, other)
    assert looks[0] == QueueSweep(drive.keys.queue, broken=f"{drive.base}{part} is a string")
    assert looks[1].overdue == ("M",)
    assert drive.state() == before
    drive.redis.delete(*sweep_keys(other))


@pytest.mark.bad_input("data found: deadline that is none")
def test_infinite_scores_are_reported_as_numbers(drive: Drive) -> None:
    """Infinite scores that another program wrote do not break the answer for all queues."""
    drive.redis.zadd(drive.keys.delayed, {"x": "inf"})
    drive.redis.zadd(drive.keys.unacked, {"L": "-inf"})
    assert swept(drive) == [QueueSweep(drive.keys.queue, 2**53, -(2**53), overdue=("L",))]


@pytest.mark.bad_input("data found: deadline that is none")
@pytest.mark.parametrize("member", ["two words", "a:b", "ä", b"\xff\xfe", ""])
def test_lease_with_an_invalid_id_is_set_aside(engine_drive: Drive, member: Any) -> None:
    """A member that is not a lease id never stands in front of leases: it is put a minute off."""
    drive = engine_drive
    drive.redis.zadd(drive.keys.unacked, {member: 5, "L": NOW})
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW)
    assert swept(drive, leases=1)[0].overdue == ()
    assert swept(drive, leases=1)[0].overdue == ("L",)
    assert drive.redis.zscore(drive.keys.unacked, member) == NOW + 60_000
    assert drive.stats("set_aside") == {"set_aside": 1}


def test_notes_of_another_kind_do_not_stop_the_sweep(drive: Drive) -> None:
    """Whatever stands in the counters of a queue, it is read, and so are the others."""
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    drive.redis.hset(drive.keys.stats, mapping={"reaped_ms": 5, "gaps": "x"})
    assert swept(drive)[0].broken is None


def test_five_hundred_queues_in_one_call(drive: Drive) -> None:
    """The largest call answers for each queue."""
    others = [QueueKeys("n", f"q{number}") for number in range(499)]
    assert len(swept(drive, *others)) == 500
