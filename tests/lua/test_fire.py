"""fire.lua: send the message of one slot of a schedule, once however many daemons try."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.fire import Fired, Rule, fire, skip
from qworker.engine.groups import group_page
from qworker.engine.settle import Outcomes
from qworker.errors import (
    GroupFullError,
    InvalidOptionError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
)
from qworker.wire.envelope import tail
from tests import servers
from tests.lua.drive import NOW, READY_PARTS, Drive, own

SLOT = NOW - 10
SPEC = b'{"cron": "* * * * *"}'


@pytest.fixture
def scheduled(engine_drive: Drive) -> Drive:
    """A queue with one schedule."""
    engine_drive.redis.hset(engine_drive.keys.schedules, "nightly", SPEC)
    return engine_drive


def fired(
    drive: Drive, message_id: str = "a", slot_ms: int = SLOT, spec: bytes = SPEC, **options: Any
) -> Any:
    """Fire a slot; whether this call did."""
    options = {"now_ms": NOW, "tail": tail(message_id.encode()), **options}
    command = fire(drive.keys, "nightly", slot_ms, spec, message_id=message_id, **options)
    return drive.run(command).fired


def test_fires_a_slot_once(scheduled: Drive) -> None:
    """The first daemon sends the message and notes the slot, the others find it fired."""
    drive = scheduled
    assert fired(drive, "a") is True
    assert fired(drive, "b") is False
    assert fired(drive, "b", SLOT - 1) is False
    assert drive.state() == {
        "ready": [own("a")],
        "wake": ["1"],
        "schedules": {"nightly": SPEC.decode(), "nightly:fired": str(SLOT)},
        "stats": {"sent": "1", "stored": "1"},
    }
    assert fired(drive, "b", SLOT + 1) is True
    assert drive.state("ready") == {"ready": [own("a"), own("b")]}


def test_changed_or_removed_schedule_does_not_fire(scheduled: Drive) -> None:
    """A daemon that knows an older spec sends nothing, nor one whose schedule is gone."""
    before = scheduled.state()
    assert fired(scheduled, spec=b"old") is False
    assert scheduled.state() == before
    scheduled.redis.delete(scheduled.keys.schedules)
    assert fired(scheduled) is False
    assert fired(scheduled, spec=b"") is False
    assert scheduled.state() == {}


def test_skipped_slot_is_noted_without_a_message(scheduled: Drive) -> None:
    """A missed run that is skipped cannot fire afterwards."""
    drive = scheduled
    assert drive.run(skip(drive.keys, "nightly", SLOT, SPEC, now_ms=NOW)).fired is True
    assert drive.run(skip(drive.keys, "nightly", SLOT, SPEC, now_ms=NOW)).fired is False
    assert fired(drive) is False
    assert drive.state() == {"schedules": {"nightly": SPEC.decode(), "nightly:fired": str(SLOT)}}


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_slot_fired_far_ahead_does_not_block_later_ones(scheduled: Drive) -> None:
    """Over an hour ahead it was fired by a clock that was set back since, or written by others: it counts as none."""
    drive = scheduled
    for ahead_ms, fires in ((3_600_000, False), (3_600_001, True), (2**53, True)):
        drive.redis.hset(drive.keys.schedules, "nightly:fired", NOW + ahead_ms)
        assert fired(drive) is fires
    assert fired(drive) is False
    assert drive.state("schedules")["schedules"]["nightly:fired"] == str(SLOT)


def test_priority_and_time_to_live(scheduled: Drive) -> None:
    """The message goes to its level with its expiry: its own, the queue's where it has none, or none for 0."""
    drive = scheduled
    drive.redis.hset(drive.keys.meta, "ttl_ms", 70)
    fired(drive, "a", SLOT, priority=4, ttl_ms=5)
    fired(drive, "b", SLOT + 1)
    fired(drive, "c", SLOT + 2, ttl_ms=0)
    assert drive.state(*READY_PARTS, "meta") == {
        "ready": [own("b", flags=" x=1000070"), own("c")],
        "ready:4": [own("a", flags=" x=1000005")],
        "meta": {"ttl_ms": "70", "levels": "4"},
    }


def test_delay_of_the_queue_does_not_hold_a_schedule_back(scheduled: Drive) -> None:
    """The schedule is the delay: its message is ready at once."""
    scheduled.redis.hset(scheduled.keys.meta, "delay_ms", 5000)
    fired(scheduled)
    assert scheduled.state("ready", "delayed") == {"ready": [own("a")]}


def test_refused_slot_stays_unfired(scheduled: Drive) -> None:
    """Where the queue is paused or full nothing is noted, and a later call may fire the slot."""
    drive = scheduled
    drive.redis.hset(drive.keys.meta, "paused", "in")
    before = drive.state()
    with pytest.raises(QueuePausedError):
        fired(drive)
    drive.redis.hset(drive.keys.meta, mapping={"paused": "", "maxlen": 1})
    drive.redis.hset(drive.keys.stats, "stored", 1)
    with pytest.raises(QueueFullError):
        fired(drive)
    assert drive.state("schedules") == {"schedules": before["schedules"]}
    assert drive.run(skip(drive.keys, "nightly", SLOT - 1, SPEC, now_ms=NOW)).fired is True
    drive.redis.hdel(drive.keys.meta, "maxlen")
    assert fired(drive) is True


def test_full_server_refuses() -> None:
    """Over maxmemory a schedule does not fire, and its slot stays."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.hset(drive.keys.schedules, "nightly", SPEC)
            drive.redis.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemoryError):
                fired(drive)
            assert drive.state() == {"schedules": {"nightly": SPEC.decode()}}
            drive.close()


def test_invalid_counter_does_not_stop_it(scheduled: Drive) -> None:
    """The message is sent whatever the counters hold."""
    scheduled.redis.hset(scheduled.keys.stats, "sent", "x")
    assert fired(scheduled) is True
    assert scheduled.state("ready") == {"ready": [own("a")]}


@pytest.mark.parametrize(
    ("overlap", "noted", "tombstones"),
    [
        ("skip", SLOT + 1, None),
        ("queue", SLOT, None),
        ("cancel", SLOT, {"a": NOW + 604_800_000}),
    ],
)
def test_slot_is_kept_out_until_the_earlier_message_has_ended(
    scheduled: Drive, overlap: str, noted: int, tombstones: dict[str, int] | None
) -> None:
    """`skip` drops the slot, `queue` leaves it, `cancel` also tells the message that holds the schedule's key."""
    drive, flags = scheduled, " u=schedule%3Anightly"

    def fire_it(message_id: str, slot_ms: int, at: int = NOW) -> Fired:
        item, rule = f"{flags}\n{message_id}".encode(), Rule("schedule:nightly", overlap)
        command = fire(
            drive.keys, "nightly", slot_ms, SPEC, message_id=message_id, tail=item, rule=rule, now_ms=at
        )  # fmt: skip
        done: Fired = drive.run(command)
        return done

    assert fire_it("a", SLOT) == Fired(True)
    assert drive.state("unique") == {"unique": {"schedule:nightly": f"a {2**53}"}}
    assert fire_it("b", SLOT) == Fired(False)  # fired before: nothing keeps it out
    assert fire_it("b", SLOT + 1) == Fired(False, "a")
    state = drive.state("ready", "schedules", "cancelled", "stats")
    assert state["ready"] == [own("a", flags=flags)]
    assert state["schedules"]["nightly:fired"] == str(noted)
    assert state.get("cancelled") == tombstones
    assert state["stats"] == {"sent": "1", "stored": "1"}

    drive.redis.delete(drive.keys.cancelled)
    drive.receive("L")
    acks = Outcomes("L")
    acks.uniques = ["0", "schedule:nightly", "a"]
    drive.settle(acks)
    assert drive.state("unique") == {}
    assert fire_it("c", SLOT + 2) == Fired(True)


def test_jitter_delays_the_message(scheduled: Drive) -> None:
    """The slot has fired, and the message waits; its time to live begins when it is ready."""
    fired(scheduled, "a", delay_ms=250, ttl_ms=9)
    state = scheduled.state("ready", "delayed")
    assert state == {"delayed": {own("a", flags=" x=1000259", ready_ms=NOW + 250): NOW + 250}}


def test_a_message_of_a_schedule_waits_in_its_group(scheduled: Drive) -> None:
    """It takes its turn, is kept out by the limit of waiting messages, and is not sent in a divided queue."""
    drive = scheduled
    drive.redis.hset(drive.keys.limits, "g", "m=2")
    for number in range(2):
        assert fired(drive, f"m{number}", SLOT + number, tail=tail(b"", {"g": "g"})) is True
    before = drive.state()
    with pytest.raises(GroupFullError):
        fired(drive, "m2", SLOT + 2, tail=tail(b"", {"g": "g"}))
    assert drive.state() == before
    assert [group.name for group in drive.run(group_page(drive.keys, now_ms=NOW))[2]] == ["g"]
    drive.redis.hset(drive.keys.meta, "shards", "2 2 5")
    with pytest.raises(InvalidOptionError, match="divided into 2 shards"):
        fired(drive, "m2", SLOT + 2, tail=tail(b"", {"g": "h"}))
    assert fired(drive, "m2", SLOT + 2) is True
